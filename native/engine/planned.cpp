#include "planned.h"

#include <algorithm>

#include "pointers.h"

namespace memfit {

bool Planned::use(PlanTable table, SwapTable swaps, const std::vector<uint64_t>& resident, bool at_boundary) {
  drop();
  if (!swaps.swaps.empty() && !copies_.make_lanes()) return false;
  auto fresh = swaps.swaps.empty() ? nullptr : std::make_unique<Swaps>(std::move(swaps), at_boundary);
  const std::unordered_set<uint64_t> stays(resident.begin(), resident.end());
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
  size_t offset = 0;
  for (Block* block : staying) ++block->active;  // so that only this moves them
  const bool fits = make_zone(table.bytes, staying, swapped, offset);
  if (fits) begin(std::move(table), std::move(fresh), offset, at_boundary);
  for (Block* block : staying) --block->active;
  if (!fits)
    for (Block* block : swapped) block->swapped = -1;
  stats_.plans += fits;
  return fits;
}

bool Planned::make_zone(size_t bytes, const std::vector<Block*>& staying, const std::vector<Block*>& swapped, size_t& offset) {
  try {
    return pack(staying) && clear_away(swapped) &&
           (find_zone(bytes, offset) || (shelf_.clear() && find_zone(bytes, offset))) && clear_zone(offset, bytes);
  } catch (const TierFailure&) {
    return false;  // nothing is lost: what could not be moved is where it was
  }
}

void Planned::begin(PlanTable table, std::unique_ptr<Swaps> swaps, size_t offset, bool at_boundary) {
  stats_.planned_footprint_bytes = offset + table.bytes;
  memory_.arena->set_plan(std::move(table), offset, at_boundary);
  swaps_ = std::move(swaps);
  thread_ = nullptr;
  is_shared_ = false;
  ++course_;
  if (at_boundary) carry_over();
}

void Planned::iteration_ends() {
  ++course_;
  Plan* plan = memory_.arena->plan();
  if (plan != nullptr && !plan->begun()) carry_over();
  if (plan != nullptr) plan->iteration_ends();
  if (swaps_) swaps_->iteration_ends();
}

bool Planned::is_shared(const ThreadState& thread) {
  if (thread_ == nullptr) thread_ = &thread;
  return is_shared_ |= thread_ != &thread;
}

// The plan begins with this iteration: what is alive from the last one goes where it would have put it. What a failing
// tier keeps from going there stays where it is.
void Planned::carry_over() {
  for (Block* block : books_.all()) {
    int64_t ordinal = books_.is_of_session(*block) ? forecast_.last_ordinal(*block) : -1;
    bool movable = residency_.may_move(*block) || (!block->resident() && !block->copy && block->extent != nullptr);
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

// Bring the blocks in and slide them to the low end. False when they don't fit.
bool Planned::pack(const std::vector<Block*>& resident) {
  for (Block* block : resident)
    if (!block->resident() && !placing_.bring_in(*block, 0)) return false;
  residency_.consolidate(resident);
  return true;
}

// The plan gives them their places when they are needed.
bool Planned::clear_away(const std::vector<Block*>& blocks) {
  return std::all_of(blocks.begin(), blocks.end(), [&](Block* block) { return !residency_.may_move(*block) || moves_.evict(*block); });
}

// The lowest stretch of `bytes` with nothing in it that must stay. False when there is none.
bool Planned::find_zone(size_t bytes, size_t& offset) const {
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
bool Planned::clear_zone(size_t from, size_t bytes) {
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

Region* Planned::place(Block& block) {
  Plan* plan = memory_.arena->plan();
  return plan == nullptr ? nullptr : plan->take(memory_.arena->round(block.bytes), &block);
}

bool Planned::drop() {
  if (memory_.arena->plan() == nullptr) return false;
  count(stats_);
  end_swaps();
  memory_.arena->drop_plan([this](Region* region) {
    tell_owner(region);
    if (owner_of(region)->small) shelf_.is_scattered();
  });
  return true;
}

void Planned::count(Stats& stats) const {
  const Plan* plan = memory_.arena->plan();
  if (plan == nullptr) return;
  stats.planned_allocations += plan->planned();
  stats.plan_mismatches += plan->mismatches();
  if (swaps_) stats.derailments += swaps_->derailments();
}

void Planned::end_swaps() {
  copies_.settle_all();
  copies_.finish();
  ++course_;
  if (swaps_) forget_swaps();
}

void Planned::forget_swaps() {
  swaps_.reset();
  for (Block* block : books_.all()) block->swapped = -1;
}

void Planned::abandon() {
  forget_swaps();
  memory_.arena->drop_plan(tell_owner);
}

size_t Planned::held() const {
  const Plan* plan = memory_.arena ? memory_.arena->plan() : nullptr;
  return (swaps_ ? swaps_->held() : 0) + (plan != nullptr ? plan->held() : 0);
}

}  // namespace memfit
