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
  for (Block* block : books_.all()) {
    if (!books_.is_of_session(*block)) continue;
    if (fresh) fresh->bind(*block);
    if (block->swapped >= 0)
      swapped.push_back(block);
    else if (stays.count(block->id) != 0)
      staying.push_back(block);
  }
  shelf_.make_way_for(stays);
  for (Block* block : staying) ++block->active;  // so that only this moves them
  bool fits = false;
  try {
    size_t offset = 0;
    fits = pack(staying) && clear_away(swapped) &&
           (find_zone(table.bytes, offset) || (shelf_.clear() && find_zone(table.bytes, offset))) &&
           clear_zone(offset, table.bytes);
    if (fits) {
      stats_.planned_footprint = offset + table.bytes;
      memory_.arena->set_plan(std::move(table), offset, at_boundary);
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
  for (Block* block : books_.all()) {
    int64_t ordinal = books_.is_of_session(*block) ? forecast_.last_ordinal(*block) : -1;
    bool movable = residency_.may_move(*block) || (!block->resident() && !block->copy && block->slot != nullptr);
    if (ordinal < 0 || !movable) continue;
    uint32_t back = swaps_ ? swaps_->last_arrival(static_cast<uint32_t>(ordinal)) : SwapTable::kNone;
    size_t take = back == SwapTable::kNone ? memory_.arena->plan()->take_of_allocation(ordinal) : back;
    Region* region = memory_.arena->plan()->carry_over(take, memory_.arena->round(block->bytes), block);
    if (region == nullptr) continue;
    try {
      if (block->resident())
        moves_.move_to(*block, region);
      else if (c10::StorageImpl* storage = storage_behind(*block))
        moves_.fetch(*block, region, *storage);
      else
        memory_.arena->give_back(region);
    } catch (const TierFailure&) {
      return;
    }
  }
}

bool Engine::has_plan() {
  Lock lock(*this);
  return active() && memory_.arena->plan() != nullptr;
}

// Bring the blocks in and slide them to the low end. False when they don't fit.
bool Engine::pack(const std::vector<Block*>& resident) {
  for (Block* block : resident)
    if (!block->resident() && !bring_in(*block, 0)) return false;
  residency_.consolidate(resident);
  return true;
}

// The plan gives them their places when they are needed.
bool Engine::clear_away(const std::vector<Block*>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](Block* block) { return !residency_.may_move(*block) || moves_.evict(*block); });
}

// The lowest stretch of `bytes` with nothing in it that must stay. False when there is none.
bool Engine::find_zone(size_t bytes, size_t& offset) const {
  const Ranges& ranges = memory_.arena->ranges;
  size_t begin = 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && !residency_.may_move(*owner_of(r))) {
      if (r->offset >= begin + bytes) break;
      begin = r->end();
    }
  offset = begin;
  return bytes > 0 && begin + bytes <= ranges.limit();
}

// Move what lies in [from, from + bytes) to right above it, or swap it out.
bool Engine::clear_zone(size_t from, size_t bytes) {
  Ranges& ranges = memory_.arena->ranges;
  std::vector<Block*> victims;
  for (Region* r = ranges.first(); r != nullptr && r->offset < from + bytes; r = r->next)
    if (!r->is_free() && r->end() > from) victims.push_back(owner_of(r));
  size_t above = from + bytes;
  for (Block* victim : victims) {
    Region* hole = ranges.hole_at(above);
    size_t size = victim->region->size;
    bool moved = hole != nullptr && above + size <= std::min(hole->end(), ranges.limit()) &&
                 moves_.move_to(*victim, ranges.take_at(hole, above, size, victim));
    if (moved)
      above += size;
    else if (!moves_.evict(*victim))
      return false;
  }
  return true;
}

Region* Engine::place_by_plan(Block& block) {
  Plan* plan = memory_.arena->plan();
  return plan == nullptr ? nullptr : plan->take(memory_.arena->round(block.bytes), &block);
}

bool Engine::drop_plan() {
  if (memory_.arena->plan() == nullptr) return false;
  count_planned(stats_);
  end_swapping();
  memory_.arena->drop_plan([this](Region* region) {
    tell_owner(region);
    if (owner_of(region)->small) shelf_.is_scattered();
  });
  return true;
}

void Engine::count_planned(Stats& stats) const {
  const Plan* plan = memory_.arena->plan();
  if (plan == nullptr) return;
  stats.planned += plan->planned();
  stats.mismatches += plan->mismatches();
  if (swaps_) stats.derailments += swaps_->derailments();
}

}  // namespace memfit
