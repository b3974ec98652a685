#include "clearing.h"

#include <algorithm>

namespace memfit {

std::optional<size_t> Clearing::make_zone(const PlanTable& table, std::optional<size_t> wanted, const std::vector<Block*>& staying,
                                          const std::vector<Block*>& swapped) {
  try {
    if (!pack(staying) || !clear_away(swapped)) return std::nullopt;
    const auto found = [&] { return !wanted ? find_zone(table.bytes) : may_be(table, *wanted) ? wanted : std::nullopt; };
    std::optional<size_t> offset = found();
    if (!offset && shelf_.clear(staying)) {
      residency_.consolidate(staying);  // down to where the shelf was
      offset = found();
    }
    const bool is_whole = memory_.arena->punched_bytes() == 0;
    return offset && is_whole && clear_zone(*offset, table.bytes) ? offset : std::nullopt;
  } catch (const TierFailure&) {
    return std::nullopt;  // nothing is lost: what could not be moved is where it was
  }
}

// Bring the blocks in and slide them to the low end. False when they don't fit.
bool Clearing::pack(const std::vector<Block*>& staying) {
  for (Block* block : staying)
    if (!block->resident() && !placing_.bring_in(*block, 0)) return false;
  residency_.consolidate(staying);
  return true;
}

// The plan gives them their places when they are needed.
bool Clearing::clear_away(const std::vector<Block*>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](Block* block) { return !residency_.may_move(*block) || moves_.evict(*block); });
}

// The lowest stretch of `bytes` with nothing in it that must stay.
std::optional<size_t> Clearing::find_zone(size_t bytes) const {
  const size_t limit = memory_.arena->limit();
  size_t begin = 0;
  for (const Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < limit; r = r->next)
    if (!r->is_free() && !residency_.may_move(*owner_of(r))) {
      if (r->offset >= begin + bytes) break;
      begin = r->end();
    }
  return bytes > 0 && begin + bytes <= limit ? std::optional(begin) : std::nullopt;
}

// Whether the zone may begin at `offset`: what cannot move lies beside it, or where no slot does.
bool Clearing::may_be(const PlanTable& table, size_t offset) const {
  const size_t end = offset + table.bytes;
  if (table.bytes == 0 || offset < memory_.arena->shelf_end() || end > memory_.arena->limit()) return false;
  for (const Region* r = memory_.arena->ranges.first(); r != nullptr && r->offset < end; r = r->next) {
    if (r->is_free() || r->end() <= offset || residency_.may_move(*owner_of(r))) continue;
    if (r->offset < offset || r->end() > end || table.uses(r->offset - offset, r->end() - offset)) return false;
  }
  return true;
}

// Move what lies in [from, from + bytes) and may move to right above it, or swap it out.
bool Clearing::clear_zone(size_t from, size_t bytes) {
  Ranges& ranges = memory_.arena->ranges;
  if (compaction_.all_fit(0) && compaction_.open(from, from + bytes)) return true;
  std::vector<Block*> victims;
  for (Region* r = ranges.first(); r != nullptr && r->offset < from + bytes; r = r->next)
    if (!r->is_free() && r->end() > from && residency_.may_move(*owner_of(r))) victims.push_back(owner_of(r));
  size_t above = from + bytes;
  for (Block* victim : victims) {
    Region* hole = ranges.hole_at(above);
    size_t size = victim->region->size;
    bool moved = hole != nullptr && above + size <= std::min(hole->end(), ranges.limit()) &&
                 moves_.move_to(*victim, ranges.take_at(hole, above, size, victim));
    if (moved)
      above += size;
    else if (!residency_.evict(*victim))
      return false;
  }
  return true;
}

}  // namespace memfit
