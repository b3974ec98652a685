// Trying: whether a call's output comes out the same where one of its inputs lies, and once more.
//
// It is tried while an iteration is recorded, once for each kind of call: when the op has ended it runs once more, on a
// copy of that input in whose place its output is to lie, and that is compared with the output that it gave. Where bytes are
// not compared whenever they are made again (Discarding), that input is made again too, and so is what a forward pass keeps:
// a plan that drops it needs no copy of it then.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <memory>

#include "recipe.h"
#include "thread_state.h"
#include "tried_calls.h"

namespace memfit {

class Engine;

class Trying {
 public:
  explicit Trying(Engine& engine) : engine_(engine) {}

  // The thread's op, whose call was kept, has ended. With no lock held.
  void op_ended(ThreadState& thread, c10::ArrayRef<c10::IValue> outputs);
  // It is known what the call has made. (Of no use where bytes are compared whenever they are made again.)
  void outputs_kept(ThreadState& thread, const std::shared_ptr<const Recipe>& recipe);

 private:
  bool comes_out_over(const std::shared_ptr<const Recipe>& recipe, size_t operand, const at::Tensor& output);
  void note(ThreadState& thread, const Value& input, const at::Tensor& output);
  bool can_be_made_again(const ThreadState& thread, const Value& value);
  bool comes_out_again(const Value& value);
  TriedCalls::Again come_out_again(const std::shared_ptr<const Recipe>& recipe);
  bool is_what_is_there(const Value& value, const c10::Storage& made);
  bool is_room_for(const ThreadState& thread, size_t bytes);

  Engine& engine_;
};

}  // namespace memfit
