// In-place reuse: an op's output takes the place of an input that nobody needs any more.
//
// A plan foresees it: it gives the output's take the place where the input lies. Calls of which it is known (trying.h) that
// their output comes out the same there hand it over. Whatever the program does, the input's bytes can be had: it is
// discarded, and made again by the op that made it if somebody reads it after all.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "books.h"
#include "discarding.h"
#include "memory.h"
#include "recipe.h"
#include "thread_state.h"
#include "tried_calls.h"

namespace memfit {

class InPlace {
 public:
  InPlace(Books& books, const Memory& memory, Discarding& discarding, const TriedCalls& tried)
      : books_(books), memory_(memory), discarding_(discarding), tried_(tried) {}

  // Which of a call's operands its output could lie over; `output`: what it returned elsewhere.
  static std::vector<size_t> candidates(const Recipe& recipe, const at::Tensor& output);
  // Whether it was tried, where bytes are not compared whenever something is made again, that the value's can be: nothing
  // where something was not tried.
  std::optional<bool> can_be_made_again(const Value& value) const;

  // The thread's op, whose call may be kept as a recipe, is about to run: what was found of its inputs is not true.
  void op_starts(ThreadState& thread, c10::ArrayRef<const c10::IValue> inputs) const;
  // An input of its op in whose place `block` is to lie by the plan. (None for one that runs beside the compute stream: the
  // input may be in use there.)
  struct Offer {
    Block* giver = nullptr;
    std::vector<ValueRef> sources;
    bool is_refused = false;  // there is one that cannot give its place
    Region* place() const { return giver == nullptr ? nullptr : giver->region; }
  };
  Offer offer(const ThreadState& thread, const Block& block) const;
  // Its place has been taken, if it is free now.
  void settle(ThreadState& thread, Offer offer);
  // For a trial: the block takes the place of what the thread has for it. Null if that is of another size.
  Region* take_over(ThreadState& thread, Block& block);
  // What has handed over its place is not to be read any more.
  void op_ends(ThreadState& thread) const;

 private:
  bool was_tried(const ThreadState& thread, const Block& block) const;
  bool may_give(const ThreadState& thread, const Block& block) const;

  Books& books_;
  const Memory& memory_;
  Discarding& discarding_;
  const TriedCalls& tried_;
};

}  // namespace memfit
