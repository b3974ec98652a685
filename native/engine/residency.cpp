#include "residency.h"

#include <algorithm>
#include <deque>
#include <vector>

namespace memfit {

bool Residency::may_move(const Block& block) const { return memfit::may_move(block, turns_); }

bool Residency::may_slide(const Block& block) const {
  return memory_.holds(block) && block.active == 1 && !block.pinned && !block.held && block.attached();
}

Region* Residency::place_at_edge(size_t bytes, Block* block, bool high) {
  Ranges& ranges = memory_.arena->ranges;
  bytes = align_up(bytes, ranges.alignment());
  while (true) {  // each time that one cannot be cleared, something in it turns out to stay
    auto [first, last] = smallest_stretch(bytes);
    if (first == nullptr) return nullptr;
    size_t end = std::min(last->end(), ranges.limit());
    size_t offset = high ? end - bytes : first->offset;
    while (first->end() <= offset) first = first->next;
    while (last->offset >= offset + bytes) last = last->prev;
    if (clear(first, last)) return ranges.take_at(ranges.hole_at(offset), offset, bytes, block);
  }
}

std::pair<Region*, Region*> Residency::smallest_stretch(size_t bytes, size_t free) const {
  const Ranges& ranges = memory_.arena->ranges;
  std::pair<Region*, Region*> best{nullptr, nullptr};
  size_t smallest = SIZE_MAX;
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit();) {
    Region* first = r;
    Region* last = nullptr;
    size_t in_holes = 0;
    for (; r != nullptr && r->offset < ranges.limit() && (r->is_free() || may_move(*owner_of(r))); r = r->next) {
      last = r;
      in_holes += r->is_free() ? r->size : 0;
    }
    if (last == nullptr) {
      r = r->next;
      continue;
    }
    size_t span = std::min(last->end(), ranges.limit()) - first->offset;
    if (span >= bytes && in_holes >= free && span < smallest) smallest = span, best = {first, last};
  }
  return best;
}

bool Residency::evict(Block& block) {
  const bool is_made = costs_.is_dropped(block) && discarding_.can_be_made(block);
  return (is_made && discarding_.discard(block, Discarding::By::kEviction)) || moves_.evict(block);
}

// What is to be dropped can be made again.
bool Residency::costs_what_it_seems(Region* first, Region* last) {
  bool does = true;
  for (Region* r = first; does; r = r->next) {
    does = r->is_free() || !costs_.is_dropped(*owner_of(r)) || discarding_.can_be_made(*owner_of(r));
    if (r == last) break;
  }
  return does;
}

bool Residency::make_room(size_t bytes, Cost cost_of) {
  Ranges& ranges = memory_.arena->ranges;
  bytes = align_up(bytes, ranges.alignment());
  while (true) {  // as in place_at_edge
    Region *best_first = nullptr, *best_last = nullptr;
    double best = Costs::kNever, cost = 0;
    size_t span = 0;
    Region* first = ranges.first();
    std::deque<double> costs;  // from `first` on
    for (Region* r = first; r != nullptr && r->offset < ranges.limit(); r = r->next) {
      const double own = r->is_free() ? 0 : may_move(*owner_of(r)) ? (costs_.*cost_of)(*owner_of(r)) : Costs::kNever;
      if (own == Costs::kNever) {
        first = r->next, span = 0, cost = 0;
        costs.clear();
        continue;
      }
      span += std::min(r->end(), ranges.limit()) - r->offset;
      costs.push_back(own);
      cost += costs.back();
      for (; first != r && span - first->size >= bytes; first = first->next) {
        span -= first->size;
        cost -= costs.front();
        costs.pop_front();
      }
      if (span >= bytes && cost < best) best = cost, best_first = first, best_last = r;
    }
    if (best_first == nullptr) return false;
    if (costs_what_it_seems(best_first, best_last) && clear(best_first, best_last)) return true;
  }
}

bool Residency::clear(Region* first, Region* last, bool evicts) {
  std::vector<Block*> victims;
  for (Region* r = first;; r = r->next) {
    if (!r->is_free()) victims.push_back(owner_of(r));
    if (r == last) break;
  }
  size_t from = first->offset, to = last->end();
  std::sort(victims.begin(), victims.end(), [](Block* a, Block* b) { return a->bytes > b->bytes; });
  bool cleared = true;
  for (Block* victim : victims)
    if (!relocate(*victim, from, to) && !(evicts && evict(*victim))) cleared = false;
  return cleared;
}

std::vector<Block*> Residency::cheapest_first() const {
  std::vector<std::pair<double, Block*>> found;
  for (const Region* r = memory_.arena->ranges.first(); r != nullptr; r = r->next) {
    if (r->is_free() || !may_move(*owner_of(r))) continue;
    Block* block = owner_of(r);
    found.emplace_back(costs_.of_leaving(*block) / static_cast<double>(block->bytes), block);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Block*> blocks;
  for (const auto& [cost, block] : found) blocks.push_back(block);
  return blocks;
}

bool Residency::relocate(Block& block, size_t avoid_from, size_t avoid_to) {
  Region* target = block.small ? memory_.arena->take_on_shelf(block.bytes, &block) : nullptr;
  if (target == nullptr) target = memory_.arena->ranges.take_outside(block.bytes, &block, avoid_from, avoid_to);
  return target != nullptr && moves_.move_to(block, target);
}

size_t Residency::widest_window(bool running, size_t enough) const {
  const Ranges& ranges = memory_.arena->ranges;
  size_t widest = 0, span = 0;
  for (Region* r = ranges.first(); widest < enough && r != nullptr && r->offset < ranges.limit(); r = r->next) {
    bool stays = !r->is_free() && (!may_move(*owner_of(r)) || (running && owner_of(r)->small));
    span = stays ? 0 : span + std::min(r->end(), ranges.limit()) - r->offset;
    widest = std::max(widest, span);
  }
  return widest;
}

void Residency::consolidate(const std::vector<Block*>& own) {
  std::vector<Block*> movers;
  for (Block* block : own)
    if (may_slide(*block) && !memory_.arena->on_shelf(block->region) && !memory_.arena->is_planned(block->region))
      movers.push_back(block);
  std::sort(movers.begin(), movers.end(), [](Block* a, Block* b) { return a->region->offset < b->region->offset; });
  ++stats_.consolidations;
  size_t floor = 0;
  for (Block* mover : movers) floor = slide_down(*mover, floor);
}

size_t Residency::slide_down(Block& mover, size_t floor) {
  Ranges& ranges = memory_.arena->ranges;
  size_t size = mover.region->size;
  Region* first = nullptr;
  size_t span = 0;
  Region* r = ranges.first();
  for (; r != nullptr && r != mover.region && r->offset < ranges.limit() && span < size; r = r->next) {
    if (r->offset < floor) continue;
    if (!r->is_free() && !may_move(*owner_of(r))) {
      first = nullptr, span = 0;
      continue;
    }
    if (first == nullptr) first = r;
    span += std::min(r->end(), ranges.limit()) - r->offset;
  }
  bool adjacent = r == mover.region && first != nullptr;
  if (span < size && !adjacent) return mover.region->end();
  Region* last = span < size ? mover.region->prev : r->prev;
  size_t target = first->offset;
  if (target + size > ranges.limit() || !clear(first, last)) return mover.region->end();
  return moves_.move_down(ranges, mover, target);
}

}  // namespace memfit
