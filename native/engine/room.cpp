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

bool Room::frames_give_way() { return !memory_.is_closed && paging_.make_room(); }

}  // namespace memfit
