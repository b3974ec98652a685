// Planned mode: the plan's zone is cleared at an iteration's end and hands out addresses from then on.
//
// Below it lie, packed, the storages that recur (parameters, optimizer states); what the plan does not know goes
// wherever else there is room. When there is none the plan is dropped: its zone becomes ordinary space.
#include <algorithm>
#include <unordered_set>

#include "engine.h"
#include "lock.h"

namespace memfit {

bool Engine::use_plan(PlanTable table, SwapTable swaps, const std::vector<uint64_t>& resident, bool at_boundary) {
  Lock lock(*this);
  if (!governs()) return false;
  Standstill standstill(*this);
  if (!active()) return false;
  drop_plan();
  if (!swaps.swaps.empty() && !make_lanes()) return false;
  auto fresh = swaps.swaps.empty() ? nullptr : std::make_unique<Swaps>(std::move(swaps), at_boundary);
  std::unordered_set<uint64_t> stays(resident.begin(), resident.end());
  std::vector<Block*> staying, swapped;
  for (Block* block : blocks_) {
    if (block->session != session_) continue;
    if (fresh) fresh->bind(*block);
    if (block->swapped >= 0)
      swapped.push_back(block);
    else if (stays.count(block->id) != 0)
      staying.push_back(block);
  }
  sort_shelf(stays);
  for (Block* block : staying) ++block->active;  // so that only this moves them
  bool fits = false;
  try {
    size_t offset = 0;
    fits = pack(staying) && clear_away(swapped) &&
           (find_zone(table.bytes, offset) || (clear_shelf() && find_zone(table.bytes, offset))) &&
           clear_zone(offset, table.bytes);
    if (fits) {
      stats_.planned_footprint = offset + table.bytes;
      arena_->set_plan(std::move(table), offset, at_boundary, &zone_owner_);
      swaps_ = std::move(fresh);
      plan_thread_ = nullptr;
      plan_is_shared_ = false;
      ++course_;
      if (at_boundary) carry_over();
    }
  } catch (const TierFailure&) {
    // Nothing is lost: what could not be moved is where it was.
  }
  for (Block* block : staying) deactivate(*block);
  if (!fits)
    for (Block* block : swapped) block->swapped = -1;
  stats_.plans += fits;
  return fits;
}

// The plan begins with this iteration: what is alive from the last one goes where it would have put it. What a failing
// tier keeps from going there stays where it is.
void Engine::carry_over() {
  for (Block* block : blocks_) {
    int64_t ordinal = block->session == session_ ? forecast_.last_ordinal(*block) : -1;
    bool movable = may_move(*block) || (!block->resident() && !block->copy && block->slot != nullptr);
    if (ordinal < 0 || !movable) continue;
    uint32_t back = swaps_ ? swaps_->last_arrival(static_cast<uint32_t>(ordinal)) : SwapTable::kNone;
    size_t take = back == SwapTable::kNone ? arena_->plan()->take_of_allocation(ordinal) : back;
    Region* region = arena_->plan()->carry_over(take, arena_->round(block->bytes), block);
    if (region == nullptr) continue;
    try {
      if (block->resident())
        move_to(*block, region);
      else if (c10::StorageImpl* storage = storage_behind(*block))
        fetch(*block, region, *storage);
      else
        arena_->give_back(region);
    } catch (const TierFailure&) {
      return;
    }
  }
}

bool Engine::has_plan() {
  Lock lock(*this);
  return active() && arena_->plan() != nullptr;
}

// Bring the blocks in and slide them to the low end. False when they don't fit.
bool Engine::pack(const std::vector<Block*>& resident) {
  for (Block* block : resident)
    if (!block->resident() && !bring_in(*block, 0)) return false;
  consolidate(resident);
  return true;
}

// The plan gives them their places when they are needed.
bool Engine::clear_away(const std::vector<Block*>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](Block* block) { return !may_move(*block) || evict(*block); });
}

// The lowest stretch of `bytes` with nothing in it that must stay. False when there is none.
bool Engine::find_zone(size_t bytes, size_t& offset) const {
  const Ranges& ranges = arena_->ranges;
  size_t begin = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && !may_move(*owner_of(r))) {
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
  return plan == nullptr ? nullptr : plan->take(arena_->round(block.bytes), &block);
}

bool Engine::drop_plan() {
  if (arena_->plan() == nullptr) return false;
  count_planned(stats_);
  end_swapping();
  arena_->drop_plan([this](Region* region) {
    tell_owner(region);
    scattered_ |= owner_of(region)->small;
  });
  return true;
}

void Engine::count_planned(Stats& stats) const {
  const Plan* plan = arena_->plan();
  if (plan == nullptr) return;
  stats.planned += plan->planned();
  stats.mismatches += plan->mismatches();
  if (swaps_) stats.derailments += swaps_->derailments();
}

}  // namespace memfit
