#include "planned.h"

#include <algorithm>

#include "pointers.h"
#include "values.h"

namespace memfit {

bool Planned::use(PlanTable table, SwapTable swaps, RemakeTable remakes, const std::vector<uint64_t>& resident, bool at_boundary) {
  drop();
  tried_ = {};
  if (!swaps.swaps.empty() && !copies_.make_lanes()) return false;
  auto fresh = swaps.op_hashes.empty() ? nullptr : std::make_unique<Swaps>(std::move(swaps), at_boundary);
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
  for (Block* block : staying) ++block->active;  // so that only this moves them
  const std::optional<size_t> offset = clearing_.make_zone(table.bytes, staying, swapped);
  if (offset) begin(std::move(table), std::move(fresh), std::move(remakes), *offset, at_boundary);
  for (Block* block : staying) --block->active;
  if (!offset)
    for (Block* block : swapped) block->swapped = -1;
  stats_.plans += offset.has_value();
  return offset.has_value();
}

void Planned::begin(PlanTable table, std::unique_ptr<Swaps> swaps, RemakeTable remakes, size_t offset, bool at_boundary) {
  stats_.planned_footprint_bytes = offset + table.bytes;
  memory_.arena->set_plan(std::move(table), offset, at_boundary);
  swaps_ = std::move(swaps);
  if (!remakes.empty()) remakings_ = std::make_unique<Remakings>(std::move(remakes), discarding_);
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
  if (remakings_) forget_recipes();
}

// A storage that lives on (a loss in a list) would keep those of all that it was made from.
void Planned::forget_recipes() {
  remakings_->iteration_ends();
  for (Block* block : books_.all())
    if (!block->discarded) Values::forget_planned_recipe(*block);
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
    if (ordinal < 0 || !movable || (swaps_ && swaps_->leaves_for_good(static_cast<uint32_t>(ordinal)))) continue;
    Region* region = memory_.arena->plan()->carry_over(last_take(ordinal), memory_.arena->round(block->bytes), block);
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

// Of a storage that the program allocates, in an iteration.
size_t Planned::last_take(int64_t ordinal) const {
  const auto number = static_cast<uint32_t>(ordinal);
  if (std::optional<uint32_t> take = remakings_ ? remakings_->last_take(number) : std::nullopt) return *take;
  const uint32_t back = swaps_ ? swaps_->last_arrival(number) : SwapTable::kNone;
  return back == SwapTable::kNone ? memory_.arena->plan()->take_of_allocation(ordinal) : back;
}

Region* Planned::place(Block& block, uint32_t again, Region* over) {
  Plan* plan = memory_.arena->plan();
  return plan == nullptr ? nullptr : plan->take(memory_.arena->round(block.bytes), &block, PlanTable::kAllocation, again, over);
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
  tried_ = tried();
  if (remakings_) forget_recipes();
  swaps_.reset();
  remakings_.reset();
  for (Block* block : books_.all()) block->swapped = -1;
}

void Planned::abandon() {
  forget_swaps();
  memory_.arena->drop_plan(tell_owner);
}

size_t Planned::held() const {
  const Plan* plan = memory_.arena ? memory_.arena->plan() : nullptr;
  size_t recipes = 0;
  if (remakings_)
    for (const Block* block : books_.all()) recipes += Values::held_by_plan(*block);
  return recipes + (swaps_ ? swaps_->held() : 0) + (remakings_ ? remakings_->held() : 0) + (plan != nullptr ? plan->held() : 0);
}

}  // namespace memfit
