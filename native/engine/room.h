// Room: what cannot have a place tries again, for as long as anything may still make way.
#pragma once

#include <cstddef>

#include "admission.h"
#include "compaction.h"
#include "growth.h"
#include "memory.h"
#include "placing.h"
#include "refusals.h"
#include "residency.h"
#include "restoring.h"
#include "shelf.h"
#include "thread_state.h"

namespace memfit {

class Paging;

class Room {
 public:
  struct Parts {
    Memory& memory;
    Residency& residency;
    Compaction& compaction;
    Shelf& shelf;
    Placing& placing;
    Admission& admission;
    Growth& growth;
    Refusals& refusals;
    Restoring& restoring;
    Paging& paging;
  };
  explicit Room(const Parts& parts)
      : memory_(parts.memory), residency_(parts.residency), compaction_(parts.compaction), shelf_(parts.shelf), placing_(parts.placing),
        admission_(parts.admission), growth_(parts.growth), refusals_(parts.refusals), restoring_(parts.restoring),
        paging_(parts.paging) {}

  // The block's bytes come in, beside `more`. False when there is no room; raises TierFailure.
  bool make_available(Block& block, size_t more);
  // Whether another attempt is worth while: other threads' ops have let go of storages, or the limit has grown.
  bool may_come(ThreadState& thread, size_t bytes) { return waits(thread) || may_grow(thread, bytes); }
  bool waits(ThreadState& thread) { return admission_.wait_for_others(thread); }
  bool may_grow(ThreadState& thread, size_t bytes) { return growth_.grow(bytes, thread); }
  // `attempt` to place `bytes` of the op's inputs (of `input`, where that is a block already), as often as that is worth
  // while. False once the op has failed.
  template <typename Attempt>
  bool with_room(ThreadState& thread, size_t bytes, const Block* input, const Attempt& attempt);
  // The op's own storages slide down to where the shelf was. False when that gives back nothing.
  bool take_shelf(const ThreadState& thread);

 private:
  void slide_together(const ThreadState& thread, size_t bytes, const Block* input);
  template <typename Attempt>
  bool slid_down(const ThreadState& thread, const Attempt& attempt);
  bool frames_give_way();

  Memory& memory_;
  Residency& residency_;
  Compaction& compaction_;
  Shelf& shelf_;
  Placing& placing_;
  Admission& admission_;
  Growth& growth_;
  Refusals& refusals_;
  Restoring& restoring_;
  Paging& paging_;
};

template <typename Attempt>
bool Room::with_room(ThreadState& thread, size_t bytes, const Block* input, const Attempt& attempt) {
  try {
    do {
      slide_together(thread, bytes, input);
      if (attempt() || slid_down(thread, attempt)) return true;
      while (frames_give_way())
        if (attempt()) return true;
    } while (admission_.wait_for_others(thread));
    if (memory_.is_closed) return attempt();
    while (growth_.grow(bytes, thread))
      if (attempt()) return true;
    refusals_.refuse(thread, bytes, /*is_input=*/true);
  } catch (const TierFailure& error) {
    refusals_.refuse_by_tier(thread, error.what());
  }
  return false;
}

// An op that runs already holds pointers: nothing of its own may move.
template <typename Attempt>
bool Room::slid_down(const ThreadState& thread, const Attempt& attempt) {
  if (!thread.starting || memory_.is_closed) return false;
  shelf_.gather();
  residency_.consolidate(thread.touched);
  return attempt() || (take_shelf(thread) && attempt());
}

}  // namespace memfit
