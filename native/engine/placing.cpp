#include "placing.h"

#include "pointers.h"

namespace memfit {

Region* Placing::place(size_t bytes, size_t more, Block* block, bool high) {
  if (block->small)
    if (Region* region = shelf_.place(*block, /*evicts=*/false)) return region;
  Ranges& ranges = memory_.arena->ranges;
  if (memory_.arena->plan() != nullptr) {  // what it doesn't know goes beside its zone, or is a guest there
    if (Region* region = ranges.take_lowest(bytes, block)) return region;
    if (Region* region = resorts_.lodge(*block, bytes)) return region;
    if (residency_.make_room(bytes)) return ranges.take(bytes, block);
    resorts_.drop();
  }
  // A stretch twice as long can be cut anywhere: one part will still be long enough. A shorter one is cut at its ends.
  const size_t window = bytes + more;
  bool tight = ranges.largest_free() < window && !residency_.has_window(2 * window);
  high &= stats_.budget_bytes != 0 && ranges.largest_free() < 2 * window;
  Region* region = tight ? residency_.place_at_edge(bytes, block, high) : ranges.take(bytes, block, high);
  if (region == nullptr && !tight && residency_.make_room(bytes)) region = ranges.take(bytes, block);
  // Before it is refused, it gets what the shelf has to spare.
  bool grown = region == nullptr && memory_.arena->trim_shelf(0);
  return grown ? place(bytes, more, block, high) : region;
}

bool Placing::bring_in(Block& block, size_t more) {
  c10::StorageImpl* storage = storage_behind(block);
  if (storage == nullptr) return true;  // nobody can read it any more
  block.require_bytes();
  if (block.copy && resorts_.settle(block)) return true;
  Region* region = resorts_.place_late(block);
  if (region == nullptr) region = place(block.bytes, more, &block);
  if (region == nullptr) return false;
  moves_.fetch(block, region, *storage);
  return true;
}

}  // namespace memfit
