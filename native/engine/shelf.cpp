// The shelf: where small storages live, and large ones that must stay where they are.
//
// Sizes, lengths, offsets, seeds and scalars are read through raw pointers that nobody announces, and four bytes that
// cannot move cut the arena in two. So they lie at its low end, among themselves. They leave it only while no op runs,
// and only if there is no other way to make room.
#include "shelf.h"

#include <algorithm>
#include <vector>

#include "common/sizes.h"

namespace memfit {

namespace {

constexpr size_t kSteps = 512;                    // the shelf grows by such a part of the budget,
constexpr size_t kLargestStep = size_t{256} << 10;  // in bytes at most
constexpr size_t kShortShare = 64;                  // of the budget: what is short is no larger

}  // namespace

void Shelf::begin() {
  has_begun_ = true;
  if (stats_.budget_bytes == 0) return;
  take_in();
  grow_to(memory_.arena->shelf_end() + slack(), /*evicts=*/false);
}

// What lies next above it and must stay.
Block* Shelf::fixed_at_end() const {
  const Region* r = memory_.arena->ranges.first();
  while (r != nullptr && (r->is_free() || r->offset < memory_.arena->shelf_end())) r = r->next;
  const bool is_near = r != nullptr && r->offset <= memory_.arena->shelf_end() + step();
  return is_near && !residency_.may_move(*owner_of(r)) ? owner_of(r) : nullptr;
}

// The shelf grows over workspaces at the arena's low end, so that they never lie above what it keeps free for small ones.
void Shelf::take_in() {
  while (Block* block = fixed_at_end()) {
    memory_.arena->grow_shelf(block->region->offset);
    Region* region = memory_.arena->put_on_shelf(block->region);
    if (region == nullptr) return;
    block->region = region;
  }
}

void Shelf::trim() { memory_.arena->trim_shelf(slack() + 2 * step()); }

size_t Shelf::step() const {
  return memory_.arena->round(std::min(memory_.arena->ranges.limit() / kSteps + 1, kLargestStep));
}

size_t Shelf::end_of_step(size_t end) const { return std::min(round_up(end, step()), memory_.arena->ranges.limit()); }

// Bytes that are kept free for it, so that not every scalar has to push something large aside; an op that needs
// them has them.
size_t Shelf::slack() const { return stats_.budget_bytes == 0 ? 0 : memory_.arena->round(memory_.arena->ranges.limit() / kSmallShare); }

// Without a budget nothing is ever in the way.
bool Shelf::is_small(size_t bytes) const {
  return has_begun_ && stats_.budget_bytes != 0 && bytes <= std::min(kLargestSmallBytes, memory_.arena->ranges.limit() / kSmallShare);
}

bool Shelf::is_short(size_t bytes) const {
  return stats_.budget_bytes != 0 && bytes <= std::min(kLargestSmallBytes, memory_.arena->ranges.limit() / kShortShare);
}

Region* Shelf::place(Block& block, bool evicts, size_t more) {
  const size_t needed = memory_.arena->shelf_end_for(block.bytes);
  const auto may_grow = [&] { return more == 0 || spares_longest_hole(end_of_step(needed), more) || !compaction_.all_fit(block.bytes, &block); };
  const bool is_there = needed <= memory_.arena->shelf_end() || (needed != SIZE_MAX && may_grow() && grow_to(needed, evicts, &block));
  Region* region = is_there ? memory_.arena->take_on_shelf(block.bytes, &block) : nullptr;
  scattered_ |= region == nullptr && block.small;
  return region;
}

bool Shelf::grow_to(size_t needed, bool evicts, const Block* coming) {
  const size_t end = end_of_step(needed);
  if (end < needed || !may_grow_to(end)) return false;
  try {
    if (!clear_up_to(end, /*evicts=*/false) && !(evicts && push_up(end, coming))) return false;
  } catch (const TierFailure&) {
    return false;
  }
  memory_.arena->grow_shelf(end);
  return true;
}

// Storages that a plan has packed there are meant to stay.
bool Shelf::may_grow_to(size_t end) const {
  const bool is_planned = memory_.arena->plan() != nullptr;
  for (const Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < end; r = r->next)
    if (r->offset >= memory_.arena->shelf_end() && !r->is_free() && (is_planned || !residency_.may_move(*owner_of(r)))) return false;
  return true;
}

// What lies between the shelf and `end` fits into another hole than the longest, or leaves `more` bytes of that.
bool Shelf::spares_longest_hole(size_t end, size_t more) const {
  const Ranges& ranges = memory_.arena->ranges;
  size_t bytes = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < end; r = r->next)
    if (r->offset >= memory_.arena->shelf_end() && !r->is_free()) bytes += r->size;
  const Region* hole = bytes == 0 ? nullptr : ranges.hole_for(bytes);
  return hole == nullptr || hole->size < ranges.largest_free() || hole->size >= bytes + more;
}

// What lies above slides up, or leaves where not all that is alive fits.
bool Shelf::push_up(size_t end, const Block* coming) {
  const bool is_new = coming != nullptr && coming->region == nullptr;
  return compaction_.all_fit(is_new ? coming->bytes : 0, coming) ? compaction_.open(memory_.arena->shelf_end(), end) : clear_up_to(end, /*evicts=*/true);
}

bool Shelf::clear_up_to(size_t end, bool evicts) {
  Region *first = nullptr, *last = nullptr;
  for (Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < end; r = r->next) {
    if (r->offset < memory_.arena->shelf_end()) continue;
    if (first == nullptr) first = r;
    last = r;
  }
  return first == nullptr || residency_.clear(first, last, evicts);
}

void Shelf::gather() {
  if (!scattered_ || !turns_.none_runs() || memory_.arena->plan() != nullptr) return;
  scattered_ = false;
  const auto is_elsewhere = [&](const Block& block) { return block.small && memory_.holds(block) && !memory_.arena->on_shelf(block.region); };
  size_t bytes = 0;
  for (const Block* block : books_.all()) bytes += is_elsewhere(*block) && residency_.may_move(*block) ? block->region->size : 0;
  if (bytes != 0) grow_to(memory_.arena->shelf_used() + bytes, /*evicts=*/true);  // at once: what lies above moves once
  for (Block* block : books_.all()) {
    if (!is_elsewhere(*block)) continue;
    Region* region = residency_.may_move(*block) ? place(*block, /*evicts=*/true) : nullptr;
    if (region == nullptr)
      scattered_ = true;
    else
      moves_.move_to(*block, region);
  }
}

void Shelf::evict_scattered() {
  if (!scattered_ || !turns_.none_runs()) return;
  for (Block* block : std::vector<Block*>(books_.all()))
    if (block->small && memory_.holds(*block) && !memory_.arena->on_shelf(block->region) && residency_.may_move(*block))
      moves_.evict(*block);
}

void Shelf::keep(Block& block) {
  if (!residency_.may_slide(block) || memory_.arena->on_shelf(block.region) || (block.small && !turns_.none_runs()) || memory_.arena->plan() != nullptr) return;
  Region* region = place(block, /*evicts=*/true);
  if (region == nullptr && makes_way(block)) region = place(block, /*evicts=*/false);
  if (region != nullptr)
    moves_.move_to(block, region);
  else
    grow_over(block);
}

// It lies in its own way, where the shelf has to grow. As long as all fits, it slides up with the others for that,
bool Shelf::makes_way(Block& block) {
  const size_t from = memory_.arena->shelf_end();
  return compaction_.all_fit(0) && compaction_.open(from, end_of_step(from + block.region->size), {&block});
}

// or else comes down to the shelf's end and belongs to it.
void Shelf::grow_over(Block& block) {
  Arena& arena = *memory_.arena;
  try {
    residency_.slide_down(block, arena.shelf_end());
  } catch (const TierFailure&) {
    return;
  }
  Region* region = arena.put_on_shelf(block.region);
  if (region == nullptr) return;
  block.region = region;
  close_hole_below(block);
}

void Shelf::close_hole_below(Block& block) {
  const Region* hole = block.region->prev;
  if (hole != nullptr && hole->is_free()) moves_.move_down(memory_.arena->shelf(), block, hole->offset);
}

bool Shelf::clear(const std::vector<Block*>& own) {
  if (turns_.none_runs())
    for (Block* block : std::vector<Block*>(books_.all()))
      if (memory_.holds(*block) && memory_.arena->on_shelf(block->region) && residency_.may_move(*block))
        moves_.evict(*block);
  return close_ranks(own);
}

bool Shelf::make_hole(size_t bytes) {
  Arena& arena = *memory_.arena;
  std::vector<Block*> in_it;
  size_t span = 0;
  for (Region* r = arena.first_on_shelf(); span < bytes && r != nullptr && r->offset < arena.shelf_end(); r = r->next) {
    const bool stays = !r->is_free() && !residency_.may_move(*owner_of(r));
    span = stays ? 0 : span + std::min(r->end(), arena.shelf_end()) - r->offset;
    if (stays) in_it.clear();
    if (!stays && !r->is_free()) in_it.push_back(owner_of(r));
  }
  return span >= bytes && std::all_of(in_it.begin(), in_it.end(), [&](Block* block) {
    Region* region = arena.ranges.take(block->bytes, block);
    const bool moved = region != nullptr && moves_.move_to(*block, region);
    scattered_ |= moved && block->small;
    return moved;
  });
}

void Shelf::sort_by_size() {
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (books_.is_of_session(*block)) block->small = is_small(block->bytes);
    if (!memory_.holds(*block)) continue;
    scattered_ |= block->small;
    if (!block->small && memory_.arena->on_shelf(block->region) && residency_.may_move(*block)) leave(*block);
  }
  take_in();
  gather();
  close_ranks({});
  grow_to(memory_.arena->shelf_end() + slack(), /*evicts=*/false);
}

void Shelf::make_way_for(const std::unordered_set<uint64_t>& stays) {
  gather();
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (!memory_.holds(*block) || !memory_.arena->on_shelf(block->region) || !residency_.may_move(*block)) continue;
    if (stays.count(block->id) != 0) continue;
    leave(*block);
    scattered_ = true;
  }
  close_ranks({});
  gather();
  memory_.arena->trim_shelf(0);
}

// Among the large ones, or out of the arena where there is no room.
void Shelf::leave(Block& block) {
  if (compaction_.all_fit(0)) compaction_.make_hole(block.bytes);
  Region* region = memory_.arena->ranges.take(block.bytes, &block);
  if (region == nullptr || !moves_.move_to(block, region)) moves_.evict(block);
}

bool Shelf::close_ranks(const std::vector<Block*>& own, size_t spare) {
  for (Region* r = turns_.none_runs() ? memory_.arena->first_on_shelf() : nullptr; r != nullptr; r = r->next) {
    if (r->is_free()) continue;
    Block& block = *owner_of(r);
    const bool is_own = std::find(own.begin(), own.end(), &block) != own.end();
    if (is_own ? !residency_.may_slide(block) : !residency_.may_move(block)) continue;
    close_hole_below(block);
    r = block.region;
  }
  return memory_.arena->trim_shelf(spare);
}

}  // namespace memfit
