// Capturing: what ops do is kept as recipes, so that their results can be made again.
//
// The op whose call is kept is the outermost one that is not transparent: such composites only call others, and what they
// call has the results that autograd saves. What any other op calls may be written to by its kernel in ways that nobody sees.
#pragma once

#include <ATen/core/ivalue.h>

#include <memory>

#include "books.h"
#include "lasting.h"
#include "memory.h"
#include "recipe.h"
#include "thread_state.h"
#include "values.h"

namespace memfit {

class Capturing {
 public:
  Capturing(const Lasting& lasting, const Memory& memory) : lasting_(lasting), memory_(memory) {}

  // The thread's op has its inputs, and is about to run.
  void op_starts(ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs);
  void op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs);

 private:
  bool is_on(const ThreadState& thread) const { return !memory_.is_closed && (lasting_.flags.tracks || thread.tries); }
  bool keeps(const ThreadState& thread) const {
    return thread.tries || (lasting_.flags.tracks && (lasting_.captures || thread.captures || (lasting_.flags.drops && thread.course == 0)));
  }
  std::shared_ptr<Recipe> recipe_of(const ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const;
  bool add(Recipe& recipe, const c10::IValue& input, size_t argument) const;
  bool add_tensor(Recipe& recipe, const at::Tensor& tensor, size_t argument, int32_t item) const;
  bool add_stand_in(Recipe& recipe, const c10::IValue& input, size_t argument) const;
  bool is_ordinary(const at::Tensor& tensor) const;
  bool add_bytes(Recipe& recipe, Operand& operand, const at::Tensor& tensor) const;
  void end_written(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool is_doubtful) const;
  void keep_result(const ThreadState& thread, const at::Tensor& tensor, int32_t output, const std::shared_ptr<const Recipe>& recipe) const;
  static bool was_disturbed(const Recipe& recipe);
  bool draws_alone(const ThreadState& thread) const;

  const Lasting& lasting_;
  const Memory& memory_;
};

}  // namespace memfit
