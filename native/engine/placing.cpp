#include "placing.h"

#include "pointers.h"

namespace memfit {

namespace {

// In an arena of fewer pages, the parts of pages at the ends of holes are too much of it.
constexpr size_t kLeastPages = 256;

}  // namespace

Region* Placing::place(size_t bytes, Block* block, Hint hint) {
  if (block->small)
    if (Region* region = shelf_.place(*block, /*evicts=*/false, hint.more)) return region;
  Ranges& ranges = memory_.arena->ranges;
  if (memory_.arena->plan() != nullptr) {  // what it doesn't know goes beside its zone, or is a guest there
    if (Region* region = ranges.take_lowest(bytes, block)) return region;
    if (Region* region = resorts_.lodge(*block, bytes)) return region;
    if ((compaction_.all_fit(bytes, block) && compaction_.make_hole(bytes)) || residency_.make_room(bytes)) return ranges.take(bytes, block);
    if (!resorts_.drop()) return nullptr;
  }
  // A stretch twice as long can be cut anywhere: one part will still be long enough. A shorter one is cut at its ends.
  const size_t window = bytes + hint.more;
  bool tight = ranges.largest_free() < window && !residency_.has_window(2 * window);
  hint.high &= stats_.budget_bytes != 0 && ranges.largest_free() < 2 * window;
  Region* region = tight ? nullptr : ranges.take(bytes, block, hint.high);
  if (region == nullptr) region = place_beside_all(bytes, block, tight, hint);
  if (region == nullptr && tight) region = residency_.place_at_edge(bytes, block, hint.high);
  if (region == nullptr && !tight && residency_.make_room(bytes)) region = ranges.take(bytes, block);
  if (region != nullptr) return region;
  // Before it is refused, it gets what the shelf has to spare.
  if (memory_.arena->trim_shelf(0)) return place(bytes, block, hint);
  region = memory_.arena->take_on_shelf(bytes, block);
  return region != nullptr ? region : place_among_pages(bytes, block, hint);
}

// As long as all that is alive fits, nothing leaves. (What the shelf has to spare belongs to that.)
Region* Placing::place_beside_all(size_t bytes, Block* block, bool tight, const Hint& hint) {
  if (!compaction_.all_fit(bytes, block)) return nullptr;
  const auto slid = [&] {
    if (tight) return compaction_.place_at_edge(bytes, block, hint.high, hint.rest);
    return compaction_.make_hole(bytes) ? memory_.arena->ranges.take(bytes, block, hint.high) : nullptr;
  };
  Region* region = slid();
  if (region == nullptr && memory_.arena->trim_shelf(0)) region = slid();
  if (region == nullptr) region = memory_.arena->take_on_shelf(bytes, block);
  return region != nullptr || (hint.is_known() && !compaction_.all_fit(bytes + hint.more, block)) ? region : place_beyond(bytes, block, hint);
}

bool Placing::has_pages() const { return memory_.arena->pages() >= kLeastPages; }

Region* Placing::place_beyond(size_t bytes, Block* block, const Hint& hint) {
  Region* region = has_pages() ? memory_.arena->take_beyond(bytes, block, hint.spare) : nullptr;
  stats_.punches += region != nullptr;
  return region;
}

// Whatever may move leaves, one after the other, until free pages make up for a place beyond the limit: they need not lie together.
Region* Placing::place_among_pages(size_t bytes, Block* block, const Hint& hint) {
  const auto stays = [this](const Region& region) { return !region.is_free() && !residency_.may_move(*owner_of(&region)); };
  if (!has_pages() || memory_.arena->page_bytes_without(stays) < memory_.arena->round(bytes) + hint.spare) return nullptr;
  const std::vector<Block*> idle = residency_.cheapest_first();
  Region* region = place_beyond(bytes, block, hint);
  for (auto each = idle.begin(); region == nullptr && each != idle.end(); ++each)
    if (residency_.evict(**each)) region = place_beyond(bytes, block, hint);
  return region;
}

bool Placing::bring_in(Block& block, size_t more) {
  c10::StorageImpl* storage = storage_behind(block);
  if (storage == nullptr) return true;  // nobody can read it any more
  block.require_bytes();
  if (block.copy && resorts_.settle(block)) return true;
  Region* region = resorts_.place_late(block);
  if (region == nullptr) region = place(block.bytes, &block, {more});
  if (region == nullptr) return false;
  moves_.fetch(block, region, *storage);
  return true;
}

}  // namespace memfit
