#include "compaction.h"

#include <algorithm>

namespace memfit {

bool Compaction::all_fit_within(size_t limit, size_t bytes, const Block* coming) const {
  const size_t taken = memory_.arena->used() + memory_.arena->round(bytes);
  return taken <= limit && taken + away_bytes(coming) <= limit;
}

size_t Compaction::away_bytes(const Block* except) const {
  size_t bytes = 0;
  for (const Block* block : books_.all())
    if (block != except && block->region == nullptr && !block->dead && books_.is_of_session(*block)) bytes += memory_.arena->round(block->bytes);
  return bytes;
}

bool Compaction::may_slide(const Block& block, const Own& own) const {
  return residency_.may_move(block) || (own.count(&block) != 0 && residency_.may_slide(block));
}

template <typename Stays>
size_t Compaction::widest_between(const Stays& stays) const {
  const Ranges& ranges = memory_.arena->ranges;
  size_t widest = 0, free = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next) {
    if (r->is_free())
      widest = std::max(widest, free += r->size);
    else if (stays(*owner_of(r)))
      free = 0;
  }
  return widest;
}

size_t Compaction::widest_free() const {
  return widest_between([this](const Block& block) { return block.small || !residency_.may_move(block); });
}

size_t Compaction::widest_hole(const std::vector<Block*>& own) const {
  const Own movers(own.begin(), own.end());
  return widest_between([&](const Block& block) { return !may_slide(block, movers); });
}

void Compaction::Stretch::add(Region* region) {
  if (first == nullptr) first = region;
  last = region;
  free += region->is_free() ? region->size : 0;
}

// Runs of holes and of what may move.
std::vector<Compaction::Stretch> Compaction::stretches() const {
  const Ranges& ranges = memory_.arena->ranges;
  std::vector<Stretch> found(1);
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next) {
    if (r->is_free() || residency_.may_move(*owner_of(r)))
      found.back().add(r);
    else if (found.back().first != nullptr)
      found.emplace_back();
  }
  if (found.back().first == nullptr) found.pop_back();
  return found;
}

bool Compaction::make_hole(size_t bytes, const std::vector<Block*>& own) {
  const Ranges& ranges = memory_.arena->ranges;
  bytes = memory_.arena->round(bytes);
  if (ranges.largest_free() >= bytes) return true;
  const Stretch window = cheapest_window(bytes, Own(own.begin(), own.end()));
  if (window.first != nullptr) slide(window, /*up=*/false);
  return ranges.largest_free() >= bytes;
}

// The one with the fewest bytes to move.
Compaction::Stretch Compaction::cheapest_window(size_t bytes, const Own& own) const {
  const Ranges& ranges = memory_.arena->ranges;
  Stretch best;
  size_t fewest = SIZE_MAX, free = 0, moved = 0;
  Region* first = ranges.first();
  for (Region* r = first; r != nullptr && r->offset < ranges.limit(); r = r->next) {
    if (!r->is_free() && !may_slide(*owner_of(r), own)) {
      first = r->next, free = moved = 0;
      continue;
    }
    (r->is_free() ? free : moved) += r->size;
    for (; first != r && (!first->is_free() || free - first->size >= bytes); first = first->next) (first->is_free() ? free : moved) -= first->size;
    if (free >= bytes && moved < fewest) fewest = moved, best = {first, r, free};
  }
  return best;
}

// The shortest part at the stretch's low end, or at its high end, that has so many free bytes; all of it if that has fewer.
Compaction::Stretch Compaction::edge_of(std::pair<Region*, Region*> stretch, size_t bytes, bool high) {
  Stretch part;
  const auto [first, last] = stretch;
  if (first == nullptr) return part;
  Region* const end = high ? first->prev : last->next;
  for (Region* r = high ? last : first; r != end && part.free < bytes; r = high ? r->prev : r->next) part.add(r);
  return part;
}

// As much of the stretch as has enough free bytes slides away.
Region* Compaction::place_at_edge(size_t bytes, Block* block, bool high, size_t rest) {
  bytes = memory_.arena->round(bytes);
  Stretch part = edge_of(residency_.smallest_stretch(bytes), bytes, high);
  if (part.free < bytes && rest < SIZE_MAX - bytes) part = edge_of(residency_.smallest_stretch(bytes + rest, bytes), bytes, high);
  if (part.free < bytes) return nullptr;
  if (high) std::swap(part.first, part.last);
  const size_t at = high ? part.last->end() - bytes : part.first->offset;
  slide(part, /*up=*/!high);
  Region* hole = hole_of(bytes, at);
  return hole == nullptr ? nullptr : memory_.arena->ranges.take_at(hole, at, bytes, block);
}

bool Compaction::open(size_t from, size_t to, const std::vector<Block*>& own) {
  const Own movers(own.begin(), own.end());
  const Ranges& ranges = memory_.arena->ranges;
  Stretch part;
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit() && from + part.free < to; r = r->next) {
    if (r->end() <= from) continue;
    if (r->offset < from || (!r->is_free() && !may_slide(*owner_of(r), movers))) return false;
    part.add(r);
  }
  if (from + part.free < to) return false;
  slide(part, /*up=*/true);
  return hole_of(to - from, from) != nullptr;
}

void Compaction::slide_all_down() {
  for (const Stretch& each : stretches()) slide(each, /*up=*/false);
}

// One that cannot move after all stays, and is in the way of the others; or it has left in the midst of its move.
void Compaction::slide(const Stretch& stretch, bool up) {
  Ranges& ranges = memory_.arena->ranges;
  std::vector<Block*> movers;
  for (const Region* r = stretch.first;; r = r->next) {
    if (!r->is_free()) movers.push_back(owner_of(r));
    if (r == stretch.last) break;
  }
  size_t edge = up ? std::min(stretch.last->end(), ranges.limit()) : stretch.first->offset;
  if (up) std::reverse(movers.begin(), movers.end());
  for (Block* mover : movers) {
    moves_.slide_to(ranges, *mover, up ? edge - mover->region->size : edge);
    if (!memory_.holds(*mover)) continue;
    edge = up ? mover->region->offset : mover->region->end();
  }
}

Region* Compaction::hole_of(size_t bytes, size_t at) const {
  Region* hole = memory_.arena->ranges.hole_at(at);
  return hole != nullptr && hole->end() >= at + bytes ? hole : nullptr;
}

}  // namespace memfit
