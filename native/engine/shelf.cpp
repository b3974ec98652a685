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

}  // namespace

void Shelf::begin() {
  scattered_ = false;
  grow_to(slack(), /*evicts=*/false);
}

void Shelf::trim() { memory_.arena->trim_shelf(slack() + 2 * step()); }

size_t Shelf::step() const {
  return memory_.arena->round(std::min(memory_.arena->ranges.limit() / kSteps + 1, kLargestStep));
}

// Bytes that are kept free for it, so that not every scalar has to push something large aside; an op that needs
// them has them.
size_t Shelf::slack() const { return stats_.budget_bytes == 0 ? 0 : memory_.arena->round(memory_.arena->ranges.limit() / kSmallShare); }

// Without a budget nothing is ever in the way.
bool Shelf::is_small(size_t bytes) const {
  return stats_.budget_bytes != 0 && bytes <= std::min(kLargestSmallBytes, memory_.arena->ranges.limit() / kSmallShare);
}

Region* Shelf::place(Block& block, bool evicts) {
  Region* region = memory_.arena->take_on_shelf(block.bytes, &block);
  if (region == nullptr || region->end() <= memory_.arena->shelf_end() || grow_to(region->end(), evicts)) return region;
  memory_.arena->leave_shelf(region);
  scattered_ |= block.small;
  return nullptr;
}

bool Shelf::grow_to(size_t needed, bool evicts) {
  const size_t end = std::min(round_up(needed, step()), memory_.arena->ranges.limit());
  if (end < needed) return false;
  Region *first = nullptr, *last = nullptr;
  for (Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < end; r = r->next) {
    if (r->offset < memory_.arena->shelf_end()) continue;
    // Storages that a plan has packed there are meant to stay.
    if (!r->is_free() && (memory_.arena->plan() != nullptr || !residency_.may_move(*owner_of(r)))) return false;
    if (first == nullptr) first = r;
    last = r;
  }
  try {
    if (first != nullptr && !residency_.clear(first, last, evicts)) return false;
  } catch (const TierFailure&) {
    return false;
  }
  memory_.arena->grow_shelf(end);
  return true;
}

void Shelf::gather() {
  if (!scattered_ || !turns_.none_runs() || memory_.arena->plan() != nullptr) return;
  scattered_ = false;
  for (Block* block : books_.all()) {
    if (!block->small || !memory_.holds(*block) || memory_.arena->on_shelf(block->region)) continue;
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
  if (Region* region = place(block, /*evicts=*/true))
    moves_.move_to(block, region);
  else
    grow_over(block);
}

// It lies in its own way, where the shelf has to grow. So it comes down to the shelf's end and belongs to it.
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
  const size_t before = memory_.arena->shelf_end();
  if (turns_.none_runs())
    for (Block* block : std::vector<Block*>(books_.all()))
      if (memory_.holds(*block) && memory_.arena->on_shelf(block->region) && residency_.may_move(*block))
        moves_.evict(*block);
  if (turns_.none_runs()) tidy(own);
  return memory_.arena->shelf_end() < before;
}

void Shelf::sort_by_size() {
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (books_.is_of_session(*block)) block->small = is_small(block->bytes);
    if (!memory_.holds(*block)) continue;
    scattered_ |= block->small;
    if (!block->small && memory_.arena->on_shelf(block->region) && residency_.may_move(*block)) moves_.evict(*block);
  }
  gather();
  tidy({});
  grow_to(memory_.arena->shelf_end() + slack(), /*evicts=*/false);
}

void Shelf::make_way_for(const std::unordered_set<uint64_t>& stays) {
  gather();
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (!memory_.holds(*block) || !memory_.arena->on_shelf(block->region) || !residency_.may_move(*block)) continue;
    if (stays.count(block->id) != 0) continue;
    Region* region = memory_.arena->ranges.take(block->bytes, block);
    if (region == nullptr || !moves_.move_to(*block, region)) moves_.evict(*block);
    scattered_ = true;
  }
  tidy({});
  gather();
  memory_.arena->trim_shelf(0);
}

// The storages on the shelf move to its low end, those of `own` too, and the rest of it is given back.
void Shelf::tidy(const std::vector<Block*>& own) {
  for (Region* r = memory_.arena->first_on_shelf(); r != nullptr; r = r->next) {
    if (r->is_free()) continue;
    Block& block = *owner_of(r);
    const bool is_own = std::find(own.begin(), own.end(), &block) != own.end();
    if (is_own ? !residency_.may_slide(block) : !residency_.may_move(block)) continue;
    close_hole_below(block);
    r = block.region;
  }
  memory_.arena->trim_shelf(0);
}

}  // namespace memfit
