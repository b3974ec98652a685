#include "plan.h"

#include <algorithm>
#include <utility>

#include "held.h"

namespace memfit {

Plan::Plan(PlanTable table, size_t zone_offset, bool at_once)
    : table_(std::move(table)), is_late_(table_.slot_offset.size()), begun_(at_once),
      iteration_end_(table_.takes.size() / table_.iterations) {
  regions_.resize(table_.slot_offset.size());
  for (const PlanTable::Take& take : table_.takes)
    for (uint32_t slot = take.first_slot; slot < take.first_slot + take.slots; ++slot)
      regions_[slot] = {zone_offset + table_.slot_offset[slot], take.bytes, nullptr, nullptr, nullptr};
  memfit::give_back(table_.slot_offset);  // the regions have it
}

size_t Plan::held() const {
  return held_bytes(table_.takes, table_.slot_offset, table_.due_begin, table_.due, regions_, is_late_, late_);
}

uint32_t Plan::slot_of(const PlanTable::Take& take, uint64_t period) const {
  return take.first_slot + static_cast<uint32_t>(period % take.slots);
}

const Region* Plan::next() const {
  const bool is_planned = begun_ && ordinal_ < iteration_end_ && table_.takes[ordinal_].slots != 0;
  return is_planned ? &regions_[slot_of(table_.takes[ordinal_], period_)] : nullptr;
}

Region* Plan::take(size_t bytes, void* owner, int64_t swap, uint32_t again, Region* over) {
  if (!begun_) return nullptr;
  number_again_.reset();
  if (again != 0) pass_over_missing(again, bytes);
  if (ordinal_ >= iteration_end_) return mismatch();
  const PlanTable::Take& take = table_.takes[ordinal_];
  if (take.swap != swap || take.again != again) return mismatch();  // out of step until the iteration ends
  note_due(ordinal_++);
  if (take.bytes != bytes) return mismatch();
  if (again != 0) number_again_ = static_cast<uint32_t>(ordinal_ - 1 - again_begin_);
  if (take.slots == 0) return nullptr;
  uint32_t slot = slot_of(take, period_);
  const bool is_over = over != nullptr && over->offset == regions_[slot].offset && over->size == regions_[slot].size;
  if (!regions_[slot].is_free() || overlaps_a_late_one(regions_[slot], is_over ? over : nullptr)) return mismatch();
  if (is_over) give_back(over);
  ++planned_;
  return give(slot, owner);
}

// A re-run may allocate less than the op did: of a call that consists of several only some run again, and numbers are kept
// by value. The next take of as many bytes is meant.
void Plan::pass_over_missing(uint32_t again, size_t bytes) {
  if (std::exchange(again_, again) != again) again_begin_ = ordinal_;
  size_t next = ordinal_;
  const auto is_its_own = [&] { return next < iteration_end_ && table_.takes[next].again == again; };
  while (is_its_own() && table_.takes[next].bytes != bytes) ++next;
  if (is_its_own())
    while (ordinal_ < next) note_due(ordinal_++);
}

void Plan::pass_over(uint32_t again) {
  if (!begun_) return;
  while (ordinal_ < iteration_end_ && table_.takes[ordinal_].again == again) note_due(ordinal_++);
}

void Plan::skip(int64_t swap) {
  if (begun_ && ordinal_ < iteration_end_ && table_.takes[ordinal_].swap == swap) note_due(ordinal_++);
}

Region* Plan::carry_over(size_t take, size_t bytes, void* owner) {
  size_t last = table_.takes.size() - table_.takes.size() / table_.iterations + take;
  if (last >= table_.takes.size()) return nullptr;
  const PlanTable::Take& row = table_.takes[last];
  return row.bytes == bytes && row.slots != 0 ? give_late(slot_of(row, period_ - 1), owner) : nullptr;
}

size_t Plan::take_of_allocation(size_t ordinal) const {
  size_t take = 0;
  for (; take < table_.takes.size(); ++take)
    if (table_.takes[take].swap == PlanTable::kAllocation && table_.takes[take].again == 0 && ordinal-- == 0) break;
  return take;
}

// A take that is still to come in this iteration has last come in the one before.
Region* Plan::take_late(size_t take, size_t bytes, void* owner) {
  size_t count = table_.takes.size() / table_.iterations, row = iteration_end_ - count + take;
  uint64_t period = period_;
  if (row >= ordinal_ && iteration_end_ == count) --period, row += table_.takes.size();
  if (row >= ordinal_) row -= count;
  const PlanTable::Take& taken = table_.takes[row];
  return taken.bytes == bytes && taken.slots != 0 ? give_late(slot_of(taken, period), owner) : nullptr;
}

// Whatever is taken from its bytes later has to look at it, as at one that outstays its time.
Region* Plan::give_late(uint32_t slot, void* owner) {
  const Region& region = regions_[slot];
  for (const Region& other : regions_)
    if (!other.is_free() && other.offset < region.end() && region.offset < other.end()) return nullptr;
  mark_late(slot);
  return give(slot, owner);
}

Region* Plan::give(uint32_t slot, void* owner) {
  Region& region = regions_[slot];
  region.owner = owner;
  used_ += region.size;
  peak_end_ = std::max(peak_end_, region.end());
  return &region;
}

void Plan::mark_late(uint32_t slot) {
  is_late_[slot] = 1;
  late_.push_back(slot);
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

// The slots that should be free before take `ordinal`: note those that are not.
void Plan::note_due(size_t ordinal) {
  for (uint32_t i = table_.due_begin[ordinal]; i < table_.due_begin[ordinal + 1]; ++i) {
    const PlanTable::Due& due = table_.due[i];
    uint32_t slot = slot_of(table_.takes[due.take], period_ - due.periods_ago);
    if (!regions_[slot].is_free() && !is_late_[slot]) mark_late(slot);
  }
}

bool Plan::overlaps_a_late_one(const Region& region, const Region* but) const {
  return std::any_of(late_.begin(), late_.end(), [&](uint32_t slot) {
    return &regions_[slot] != but && regions_[slot].offset < region.end() && region.offset < regions_[slot].end();
  });
}

// Takes that did not come are passed over; what is due until the end is due.
void Plan::iteration_ends() {
  if (!std::exchange(begun_, true)) return;
  mismatches_ += iteration_end_ - ordinal_;
  mismatches_before_ = mismatches_;
  for (; ordinal_ < iteration_end_; ++ordinal_) note_due(ordinal_);
  again_ = 0;
  size_t count = table_.takes.size();
  if (ordinal_ == count) {
    note_due(count);
    ordinal_ = iteration_end_ = 0;
    ++period_;
  }
  iteration_end_ += count / table_.iterations;
}

}  // namespace memfit
