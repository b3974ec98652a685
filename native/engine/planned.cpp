#include "planned.h"

#include <algorithm>
#include <utility>

#include "hash.h"
#include "pointers.h"
#include "values.h"

namespace memfit {

namespace {

constexpr size_t kRemembered = 64;  // plans

}  // namespace

bool Planned::use(PlanTables plan, const std::vector<uint64_t>& resident) {
  drop();
  tried_ = {};
  if (!plan.swaps.swaps.empty() && !copies_.make_lanes()) return false;
  auto fresh = std::make_unique<Swaps>(std::move(plan.swaps), plan.identities.size());
  const std::unordered_set<uint64_t> stays(resident.begin(), resident.end());
  std::vector<Block*> staying, swapped;
  for (Block* block : books_.all()) {
    if (!books_.is_of_session(*block)) continue;
    fresh->bind(*block);
    if (block->swapped >= 0)
      swapped.push_back(block);
    else if (stays.count(block->id) != 0)
      staying.push_back(block);
  }
  shelf_.make_way_for(stays);
  for (Block* block : staying) ++block->active;  // so that only this moves them
  const std::optional<size_t> offset = clearing_.make_zone(plan.takes, plan.zone_offset, staying, swapped);
  if (offset) begin(std::move(plan), std::move(fresh), *offset);
  for (Block* block : staying) --block->active;
  if (!offset)
    for (Block* block : swapped) block->swapped = -1;
  stats_.plans += offset.has_value();
  return offset.has_value();
}

void Planned::begin(PlanTables plan, std::unique_ptr<Swaps> swaps, size_t offset) {
  stats_.planned_footprint_bytes = offset + plan.takes.bytes;
  memory_.arena->set_plan(std::move(plan.takes), offset, plan.at_once, [this](Region* region) { return make_way(*owner_of(region)); }, tell_owner);
  swaps_ = std::move(swaps);
  stream_ = std::make_unique<Course>(std::move(plan.identities), plan.remakes.runs_again(), plan.at_once);
  if (!plan.remakes.empty()) {
    known_as_ = plan.kind == 0 ? 0 : mix(plan.kind, plan.remakes.hash());
    const auto known = came_back_.find(known_as_);
    TriedCalls* tried = memory_.device->is_asynchronous() ? &tried_calls_ : nullptr;
    remakings_ = std::make_unique<Remakings>(std::move(plan.remakes), discarding_, tried, known == came_back_.end() ? std::vector<uint64_t>() : known->second);
  }
  thread_ = nullptr;
  is_shared_ = false;
  is_another_ = plan.is_another;
  ++course_;
  copies_.plan_begins();
  if (plan.at_once) carry_over();
}

void Planned::iteration_ends() {
  ++course_;
  Plan* plan = memory_.arena->plan();
  if (plan != nullptr && !plan->begun()) carry_over();
  if (plan != nullptr) plan->iteration_ends();
  if (stream_) stream_->iteration_ends();
  if (swaps_) copies_.iteration_ends();
  if (remakings_) forget_recipes();
  discarding_.iteration_ends();
}

// A storage that lives on (a loss in a list) would keep those of all that it was made from.
void Planned::forget_recipes() {
  remakings_->iteration_ends();
  for (Block* block : books_.all())
    if (!block->discarded) Values::forget_planned_recipe(*block);
}

void Planned::note_thread(const ThreadState& thread) {
  if (thread_ == nullptr) thread_ = &thread;
  is_shared_ |= thread_ != &thread;
}

// The plan begins with this iteration: what is alive from the last one goes where it would have put it. What a failing
// tier keeps from going there stays where it is. What another kind of iteration has left has no place in it.
void Planned::carry_over() {
  if (is_another_) return;
  for (Block* block : books_.all()) {
    int64_t ordinal = books_.is_of_session(*block) ? forecast_.last_ordinal(*block) : -1;
    bool movable = residency_.may_move(*block) || (!block->resident() && !block->copy && block->extent != nullptr);
    if (ordinal < 0 || !movable || swaps_->leaves_for_good(static_cast<uint32_t>(ordinal))) continue;
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
  const uint32_t back = swaps_->last_arrival(number);
  return back == SwapTable::kNone ? memory_.arena->plan()->take_of_allocation(ordinal) : back;
}

// What is allocated after an op is the op's, and nobody's before the first one.
Region* Planned::place(const ThreadState& thread, Block& block, Region* over) {
  Plan* plan = memory_.arena->plan();
  number_.reset();
  wants_mapped_ = false;
  if (plan == nullptr) return nullptr;
  const bool is_before_ops = thread.depth == 0 && stream_->begun() && stream_->next() == 0;
  if (thread.course != course_ && thread.again == 0 && !is_before_ops) return nullptr;
  const size_t bytes = memory_.arena->round(block.bytes);
  Region* region = plan->take(bytes, &block, PlanTable::kAllocation, thread.again, over, /*outlives=*/thread.makes_outputs);
  number_ = plan->number();
  wants_mapped_ = plan->is_mapped();
  return region;
}

bool Planned::will_be_mapped(const ThreadState& thread, size_t bytes) const {
  return is_planned(thread) && memory_.arena->plan()->will_be_mapped(memory_.arena->round(bytes));
}

void Planned::order_outputs(const ThreadState& thread, std::vector<size_t> bytes, std::vector<size_t>& order) const {
  if (!is_planned(thread)) return;
  std::transform(bytes.begin(), bytes.end(), bytes.begin(), [this](size_t each) { return memory_.arena->round(each); });
  order = memory_.arena->plan()->order_of(bytes);
}

void Planned::on_allocation_away(const ThreadState& thread, Block& block) {
  if (!will_be_mapped(thread, block.bytes)) return;
  place(thread, block);
  on_allocation(thread, block);
}

Region* Planned::place_frames(const ThreadState& thread, void* owner) {
  return is_planned(thread) ? memory_.arena->plan()->take_frames(owner) : nullptr;
}

void Planned::on_allocation(const ThreadState& thread, Block& block) {
  const std::optional<uint32_t> number = std::exchange(number_, std::nullopt);
  if (number && swaps_) swaps_->bind_as(thread.again, *number, block);
}

Region* Planned::lodge(Block& block, size_t bytes) {
  Plan* plan = memory_.arena->plan();
  // A small one would stay until no op runs.
  return plan == nullptr || block.small ? nullptr : plan->lodge(memory_.arena->round(bytes), &block);
}

// (Once the op runs its own storages stay where they are, and so do small ones: what is in its way has to go before.)
std::optional<size_t> Planned::clear_places(const ThreadState& thread) {
  Plan* plan = memory_.arena->plan();
  if (plan == nullptr || thread.recomputing || thread.course != course_ || !plan->is_followed()) return std::nullopt;
  return plan->clear_for_op();
}

bool Planned::has_room(const ThreadState& thread, std::optional<size_t> unplaced, size_t want) {
  const Plan& plan = *memory_.arena->plan();
  if (thread.recomputing) return true;
  const size_t bytes = unplaced.value_or(want);
  return bytes == 0 || bytes <= (unplaced ? plan.widest_gap_beside_op() : plan.widest_gap()) || residency_.has_window(bytes, /*running=*/true);
}

// What is in the way of a take goes where it has to be copied least.
bool Planned::make_way(Block& block) {
  if (!residency_.may_move(block)) return false;
  const bool has_copy = !block.dirty && block.extent != nullptr;
  try {
    return (!has_copy && residency_.relocate(block, 0, 0)) || residency_.evict(block);
  } catch (const TierFailure&) {
    return false;
  }
}

bool Planned::drop() {
  if (memory_.arena->plan() == nullptr || this_thread().on_trial) return false;
  count(stats_);
  end_swaps();
  memory_.arena->drop_plan([this](Region* region) { shelf_.made_ordinary(region); });
  return true;
}

void Planned::count(Stats& stats) const {
  const Plan* plan = memory_.arena->plan();
  if (plan == nullptr) return;
  stats.planned_allocations += plan->planned();
  stats.plan_mismatches += plan->mismatches();
  stats.derailments += stream_->derailments();
  stats.unplanned_ops += stream_->unplanned();
  stats.missing_ops += stream_->missing();
}

void Planned::end_swaps() {
  copies_.settle_all();
  copies_.finish();
  ++course_;
  if (swaps_) forget_swaps();
}

void Planned::forget_swaps() {
  tried_ = tried();
  if (remakings_ && known_as_ != 0) {
    if (came_back_.size() >= kRemembered) came_back_.clear();
    came_back_[known_as_] = remakings_->came_back();
  }
  if (remakings_) forget_recipes();
  swaps_.reset();
  deferred_.clear();
  stream_.reset();
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
  return recipes + (swaps_ ? swaps_->held() + stream_->held() : 0) + (remakings_ ? remakings_->held() : 0) + (plan != nullptr ? plan->held() : 0);
}

}  // namespace memfit
