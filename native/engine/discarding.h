// Discarding: storages whose bytes can be made again are given up without a copy. Recomputing and Repeating make them.
//
// What they are to be made from is kept, or made again first; before it changes, they are made. Their bytes are compared
// with what they were by a fingerprint: whatever may go wrong ends in an error, and never in other bytes. (On a device that
// compares no bytes a plan's are compared only the first time: to look at them is to wait for the device.)
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "books.h"
#include "flags.h"
#include "memory.h"
#include "moves.h"
#include "recipe.h"
#include "stats.h"
#include "tried_calls.h"
#include "turns.h"

namespace memfit {

struct OpInfo;

class Discarding {
 public:
  Discarding(Books& books, const Memory& memory, Stats& stats, const Flags& flags, const Turns& turns, const TriedCalls& tried, Moves& moves)
      : books_(books), memory_(memory), stats_(stats), flags_(flags), turns_(turns), tried_(tried), moves_(moves) {}

  // The session is about to end: what is made again from now on stays.
  void stop() { is_over_ = true; }
  // Stress takes whatever it can, but not twice without a use in between. A plan says what is to be there when: what its
  // drops are made from may go as well, as long as it can be made again itself.
  // What has to leave without a plan is dropped where it is known to come out the same, and is copied otherwise.
  enum class By { kStress, kPlan, kEviction };
  // How long it would take to make the block's bytes again, without a plan; nothing where they may not be dropped so. What
  // they are to be made from is not looked for: that takes longer,
  std::optional<uint64_t> ns_to_make(const Block& block) const;
  // and if it is not found, they may not be dropped before the next op.
  bool can_be_made(Block& block) const;
  // False when the block has to stay, or cannot be made again.
  bool discard(Block& block, By by);
  // The op that runs reads it and writes its output in its place, which is that one's already: until the op has ended, the
  // storage has the address still.
  void hand_over(Block& block, std::vector<ValueRef> sources);
  // Its bytes go to the tier instead; `is_tried`: until it is known whether they come out the same. Raises TierFailure.
  void set_aside(Block& block, bool is_tried);
  // What has to be made again before the op begins: what it reads, and what is to be made from what it writes to.
  std::vector<Block*> wanted_by(const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs, bool is_doubtful);
  // The same before somebody may write to the block through a raw pointer.
  static std::vector<Block*> wanted_with(Block& block);
  // The program has let go of the block's storage, but its bytes are still to be read again.
  bool outlives_its_storage(Block& block);
  // The bytes behind `made`, a storage that nobody else uses, become the block's, which were discarded, or went to the
  // tier. Raises std::runtime_error when they are others than those.
  void come_back(Block& block, c10::StorageImpl& made);
  // What lives on is not made again: its recipe would keep those of all that it was made from.
  void iteration_ends();
  // Whether `made` has the bytes of which the fingerprint is `print`.
  bool is_same(uint64_t print, const Block& made);

 private:
  bool may_go(const Block& block, By by) const;
  std::unique_ptr<Discarded> made_from(Block& block, std::vector<ValueRef> sources, By by);
  void take_print(Block& block);
  void compare(const Block& block, const Block& made);
  bool do_without(Block& source);

  Books& books_;
  const Memory& memory_;
  Stats& stats_;
  const Flags& flags_;
  const Turns& turns_;
  const TriedCalls& tried_;
  Moves& moves_;
  bool is_over_ = false;
};

}  // namespace memfit
