// Placing: where a storage goes, by the plan, on the shelf, or where there is room or can be.
#include <algorithm>

#include "engine.h"
#include "pointers.h"

namespace memfit {

Region* Engine::place_for_op(ThreadState& thread, Block& block) {
  const size_t size = memory_.arena->round(block.bytes);
  thread.allocated += size;
  bool high = OpWindow::goes_high(size, thread.largest);
  thread.largest = std::max(thread.largest, size);
  const size_t want = stats_.budget == 0 ? 0 : wanted(thread);
  const size_t more = want - std::min(want, thread.window.live() + size);
  Region* region = place_by_plan(block);
  if (region == nullptr) region = place(block.bytes, more, &block, high);
  if (region == nullptr) return nullptr;
  block.ticket = thread.window.take(size, high);
  turns_.keep_promise(thread, size);
  return region;
}

Region* Engine::place_outside_ops(Block& block) {
  Region* region = place_by_plan(block);
  // It has no op that would let it be moved there later: what lies above the shelf makes way now.
  if (region == nullptr && block.small) region = shelf_.place(block, /*evicts=*/true);
  return region != nullptr ? region : place(block.bytes, 0, &block);
}

// A place for `bytes`. `more` is what the running op will want beside them.
Region* Engine::place(size_t bytes, size_t more, Block* block, bool high) {
  if (block->small)
    if (Region* region = shelf_.place(*block, /*evicts=*/false)) return region;
  Ranges& ranges = memory_.arena->ranges;
  if (memory_.arena->plan() != nullptr) {  // what it doesn't know goes beside its zone, as long as nothing must leave
    if (Region* region = ranges.take_lowest(bytes, block)) return region;
    if (residency_.make_room(bytes)) return ranges.take(bytes, block);
    drop_plan();
  }
  // A stretch twice as long can be cut anywhere: one part will still be long enough. A shorter one is cut at its ends.
  const size_t window = bytes + more;
  bool tight = ranges.largest_free() < window && residency_.widest_window() < 2 * window;
  high &= stats_.budget != 0 && ranges.largest_free() < 2 * window;
  Region* region = tight ? residency_.place_at_edge(bytes, block, high) : ranges.take(bytes, block, high);
  if (region == nullptr && !tight && residency_.make_room(bytes)) region = ranges.take(bytes, block);
  // Before it is refused, it gets what the shelf has to spare.
  bool grown = region == nullptr && memory_.arena->trim_shelf(0);
  return grown ? place(bytes, more, block, high) : region;
}

// Swap in. False when there is no room; raises TierFailure with nothing changed.
bool Engine::bring_in(Block& block, size_t more) {
  c10::StorageImpl* storage = storage_behind(block);
  if (storage == nullptr) return true;  // nobody can read it any more
  if (block.copy && settle(block)) return true;
  Region* region = place_late(block);
  if (region == nullptr) region = place(block.bytes, more, &block);
  if (region == nullptr) return false;
  moves_.fetch(block, region, *storage);
  return true;
}

// The op's own storages slide down to where the shelf was. False when that gives back nothing.
bool Engine::take_shelf(const ThreadState& thread) {
  if (!shelf_.clear()) return false;
  residency_.consolidate(thread.touched);
  return true;
}

}  // namespace memfit
