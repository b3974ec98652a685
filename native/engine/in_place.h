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
#include <unordered_map>
#include <vector>

#include "books.h"
#include "discarding.h"
#include "memory.h"
#include "recipe.h"
#include "thread_state.h"

namespace memfit {

// What was tried in a session: whether an output comes out the same over an input, by call and input, and whether a call's
// outputs come out the same once more (InPlace::key_of).
struct TriedCalls {
  std::unordered_map<uint64_t, bool> over, again;

  static std::optional<bool> find(const std::unordered_map<uint64_t, bool>& tried, uint64_t key) {
    const auto found = tried.find(key);
    return found == tried.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<bool> comes_out_again(const Recipe& call) const;
  // Whether all do: nothing where that of one is not known, and none is known not to.
  std::optional<bool> come_out_again(const std::vector<const Recipe*>& calls) const;
};

class InPlace {
 public:
  InPlace(Books& books, const Memory& memory, Discarding& discarding, const TriedCalls& tried)
      : books_(books), memory_(memory), discarding_(discarding), tried_(tried) {}

  // Which of a call's operands its output could lie over; `output`: what it returned elsewhere.
  static std::vector<size_t> candidates(const Recipe& recipe, const at::Tensor& output);
  // The same calls on tensors of the same layout, in the same surroundings, have the same key.
  static uint64_t key_of(const Recipe& recipe);
  static uint64_t key_of(const Recipe& recipe, size_t operand);
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
