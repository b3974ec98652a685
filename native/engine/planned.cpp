// Planned mode: the plan's zone is cleared at an iteration's end and hands out addresses from then on.
//
// Below it lie, packed, the storages that recur (parameters, optimizer states); what the plan does not know goes
// wherever else there is room. When there is none the plan is dropped: its zone becomes ordinary space.
#include <algorithm>

#include "engine.h"
#include "lock.h"

namespace memfit {

bool Engine::use_plan(PlanTable table, bool at_boundary) {
  Lock lock(*this);
  if (!active() || forked_) return false;
  drop_plan();
  std::vector<Block*> recurring;
  for (Block* block : blocks_)
    if (block->id < first_recorded_block_ && block->session == session_) recurring.push_back(block);
  for (Block* block : recurring) ++block->active;  // so that only this moves them
  bool fits = false;
  try {
    size_t offset = 0;
    fits = pack(recurring) && find_zone(table.bytes, offset) && clear_zone(offset, table.bytes);
    if (fits) {
      stats_.planned_footprint = offset + table.bytes;
      arena_->set_plan(std::move(table), offset, at_boundary, &zone_owner_);
    }
  } catch (const TierFailure&) {
    // Nothing is lost: what could not be moved is where it was.
  }
  for (Block* block : recurring) deactivate(*block);
  stats_.plans += fits;
  return fits;
}

// Bring the blocks in and slide them to the low end. False when they don't fit.
bool Engine::pack(const std::vector<Block*>& recurring) {
  for (Block* block : recurring)
    if (!block->resident() && !bring_in(*block, 0)) return false;
  consolidate(recurring);
  return true;
}

// The lowest stretch of `bytes` with nothing in it that must stay. False when there is none.
bool Engine::find_zone(size_t bytes, size_t& offset) const {
  const Ranges& ranges = arena_->ranges;
  size_t begin = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && !owner_of(r)->may_move()) {
      if (r->offset >= begin + bytes) break;
      begin = r->end();
    }
  offset = begin;
  return bytes > 0 && begin + bytes <= ranges.limit();
}

// Move what lies in [from, from + bytes) to right above it, or swap it out.
bool Engine::clear_zone(size_t from, size_t bytes) {
  Ranges& ranges = arena_->ranges;
  std::vector<Block*> victims;
  for (Region* r = ranges.first(); r != nullptr && r->offset < from + bytes; r = r->next)
    if (!r->is_free() && r->end() > from) victims.push_back(owner_of(r));
  size_t above = from + bytes;
  for (Block* victim : victims) {
    Region* hole = ranges.hole_at(above);
    size_t size = victim->region->size;
    bool moved = hole != nullptr && above + size <= std::min(hole->end(), ranges.limit()) &&
                 move_to(*victim, ranges.take_at(hole, above, size, victim));
    if (moved)
      above += size;
    else if (!evict(*victim))
      return false;
  }
  return true;
}

Region* Engine::place_by_plan(Block& block) {
  Plan* plan = arena_->plan();
  return plan == nullptr ? nullptr : plan->take(round_up(block.bytes, Arena::kAlignment), &block);
}

bool Engine::drop_plan() {
  if (arena_->plan() == nullptr) return false;
  count_planned(stats_);
  arena_->drop_plan([](Region* region) { owner_of(region)->region = region; });
  return true;
}

void Engine::count_planned(Stats& stats) const {
  const Plan* plan = arena_->plan();
  if (plan == nullptr) return;
  stats.planned += plan->planned();
  stats.mismatches += plan->mismatches();
}

}  // namespace memfit
