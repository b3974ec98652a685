#include "room.h"

#include "paging/paging.h"

namespace memfit {

bool Room::make_available(Block& block, size_t more) {
  if (block.resident()) return true;
  if (!memory_.is_closed) return placing_.bring_in(block, more);
  Restored restored;
  if (restoring_.restore(block, restored)) return true;
  throw TierFailure(restored.why());
}

bool Room::take_shelf(const ThreadState& thread) {
  if (!shelf_.clear(thread.touched)) return false;
  residency_.consolidate(thread.touched);
  return true;
}

// As long as all that is alive fits, the op's own storages must not be what something else has to leave for.
void Room::slide_together(const ThreadState& thread, size_t bytes, const Block* input) {
  if (!thread.starting || memory_.is_closed || memory_.arena->ranges.largest_free() >= memory_.arena->round(bytes)) return;
  if (!compaction_.all_fit(bytes, input) || compaction_.make_hole(bytes, thread.touched)) return;
  shelf_.close_ranks(thread.touched);
  compaction_.make_hole(bytes, thread.touched);
}

bool Room::frames_give_way() { return !memory_.is_closed && paging_.make_room(); }

}  // namespace memfit
