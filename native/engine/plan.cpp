#include "plan.h"

#include <algorithm>
#include <utility>

namespace memfit {

Plan::Plan(PlanTable table, size_t zone_offset, bool at_once)
    : table_(std::move(table)), is_late_(table_.slot_offset.size()), begun_(at_once),
      iteration_end_(table_.allocations.size() / table_.iterations) {
  regions_.resize(table_.slot_offset.size());
  for (const PlanTable::Allocation& allocation : table_.allocations)
    for (uint32_t slot = allocation.first_slot; slot < allocation.first_slot + allocation.slots; ++slot)
      regions_[slot] = {zone_offset + table_.slot_offset[slot], allocation.bytes, nullptr, nullptr, nullptr};
}

size_t Plan::slot_of(const PlanTable::Allocation& allocation, uint64_t period) const {
  return allocation.first_slot + period % allocation.slots;
}

Region* Plan::take(size_t bytes, void* owner) {
  if (!begun_) return nullptr;
  if (ordinal_ >= iteration_end_) return mismatch();
  note_due(ordinal_);
  const PlanTable::Allocation& allocation = table_.allocations[ordinal_++];
  if (allocation.bytes != bytes) return mismatch();
  if (allocation.slots == 0) return nullptr;
  Region& region = regions_[slot_of(allocation, period_)];
  if (!region.is_free() || overlaps_a_late_one(region)) return mismatch();
  region.owner = owner;
  used_ += region.size;
  peak_end_ = std::max(peak_end_, region.end());
  ++planned_;
  return &region;
}

size_t Plan::taken_end() const {
  size_t end = 0;
  for (const Region& region : regions_)
    if (!region.is_free()) end = std::max(end, region.end());
  return end;
}

Region* Plan::mismatch() {
  ++mismatches_;
  return nullptr;
}

void Plan::give_back(Region* region) {
  region->owner = nullptr;
  used_ -= region->size;
  auto slot = static_cast<uint32_t>(region - regions_.data());
  if (!is_late_[slot]) return;
  is_late_[slot] = 0;
  late_.erase(std::find(late_.begin(), late_.end(), slot));
}

// The slots that should be free before allocation `ordinal`: note those that are not.
void Plan::note_due(size_t ordinal) {
  for (uint32_t i = table_.due_begin[ordinal]; i < table_.due_begin[ordinal + 1]; ++i) {
    const PlanTable::Due& due = table_.due[i];
    if (due.periods_ago > period_) continue;  // allocated before the plan was in force
    auto slot = static_cast<uint32_t>(slot_of(table_.allocations[due.allocation], period_ - due.periods_ago));
    if (regions_[slot].is_free() || is_late_[slot]) continue;
    is_late_[slot] = 1;
    late_.push_back(slot);
  }
}

bool Plan::overlaps_a_late_one(const Region& region) const {
  return std::any_of(late_.begin(), late_.end(), [&](uint32_t slot) {
    return regions_[slot].offset < region.end() && region.offset < regions_[slot].end();
  });
}

// Allocations that did not come are passed over; what is due until the end is due.
void Plan::iteration_ends() {
  if (!std::exchange(begun_, true)) return;
  mismatches_ += iteration_end_ - ordinal_;
  for (; ordinal_ < iteration_end_; ++ordinal_) note_due(ordinal_);
  size_t count = table_.allocations.size();
  if (ordinal_ == count) {
    note_due(count);
    ordinal_ = iteration_end_ = 0;
    ++period_;
  }
  iteration_end_ += count / table_.iterations;
}

}  // namespace memfit
