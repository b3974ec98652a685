#include "plan.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "held.h"

namespace memfit {

namespace {

bool is_lower(const Region& one, const Region& other) { return one.offset < other.offset; }

bool overlap(const Region& one, const Region& other) { return one.offset < other.end() && other.offset < one.end(); }

}  // namespace

bool PlanTable::uses(size_t from, size_t to) const {
  for (const Take& take : takes)
    for (uint32_t slot = take.first_slot; slot < take.first_slot + take.slots; ++slot)
      if (slot_offset[slot] < to && from < slot_offset[slot] + take.bytes) return true;
  return false;
}

Plan::Plan(PlanTable table, size_t zone_offset, bool at_once, std::function<bool(Region*)> make_way)
    : table_(std::move(table)), zone_offset_(zone_offset), make_way_(std::move(make_way)), is_late_(table_.slot_offset.size()), begun_(at_once),
      iteration_end_(table_.takes.size() / table_.iterations) {
  regions_.resize(table_.slot_offset.size());
  for (const PlanTable::Take& take : table_.takes)
    for (uint32_t slot = take.first_slot; slot < take.first_slot + take.slots; ++slot)
      regions_[slot] = {zone_offset + table_.slot_offset[slot], take.bytes, nullptr, nullptr, nullptr};
  memfit::give_back(table_.slot_offset);  // the regions have it
  begin_iteration();
}

// What is taken before its first op has a place as well.
void Plan::begin_iteration() { op_end_ = iteration_begin_ + table_.op_begin[0]; }

size_t Plan::held() const {
  return held_bytes(table_.takes, table_.op_begin, table_.slot_offset, table_.due_begin, table_.due, regions_, is_late_, late_);
}

uint32_t Plan::slot_of(const PlanTable::Take& take, uint64_t period) const {
  return take.first_slot + static_cast<uint32_t>(period % take.slots);
}

const Region* Plan::next() const {
  const bool is_planned = begun_ && ordinal_ < op_end_ && table_.takes[ordinal_].slots != 0;
  return is_planned ? &regions_[slot_of(table_.takes[ordinal_], period_)] : nullptr;
}

Region* Plan::take(size_t bytes, void* owner, int64_t swap, uint32_t again, Region* over, bool outlives) {
  if (!begun_) return nullptr;
  number_.reset();
  is_mapped_ = false;
  if (!find_take(bytes, swap, again, outlives)) return mismatch();
  const PlanTable::Take& take = table_.takes[ordinal_];
  note_due(ordinal_++);
  number_ = take.number;
  is_mapped_ = take.is_mapped;
  if (take.slots == 0) return nullptr;
  uint32_t slot = slot_of(take, period_);
  const bool is_over = over != nullptr && over->offset == regions_[slot].offset && over->size == regions_[slot].size;
  if (!clear(regions_[slot], is_over ? over : nullptr)) return mismatch();
  if (is_over) give_back(over);
  ++planned_;
  return give(slot, owner);
}

// The first of the op's takes to come that `is_it` accepts.
template <typename Predicate>
std::optional<size_t> Plan::find_next(Predicate is_it) const {
  for (size_t next = ordinal_; begun_ && next < op_end_; ++next)
    if (is_it(table_.takes[next])) return next;
  return std::nullopt;
}

bool Plan::will_be_mapped(size_t bytes) const {
  const std::optional<size_t> next = find_next([&](const PlanTable::Take& take) { return !take.is_temporary && take.is_allocation_of(bytes); });
  return next && table_.takes[*next].is_mapped;
}

std::vector<size_t> Plan::order_of(const std::vector<size_t>& bytes) const {
  std::vector<size_t> order, left(bytes.size());
  std::iota(left.begin(), left.end(), 0);
  for (const bool are_temporary : {false, true})
    for (size_t next = ordinal_; begun_ && next < op_end_; ++next) {
      const PlanTable::Take& take = table_.takes[next];
      const auto found = std::find_if(left.begin(), left.end(), [&](size_t i) { return take.is_allocation_of(bytes[i]); });
      if (found == left.end() || take.is_temporary != are_temporary) continue;
      order.push_back(*found);
      left.erase(found);
    }
  order.insert(order.end(), left.begin(), left.end());
  return order;
}

Region* Plan::take_frames(void* owner) {
  const std::optional<size_t> next = find_next([](const PlanTable::Take& take) { return take.again == PlanTable::kFrames; });
  return next ? take(table_.takes[*next].bytes, owner, PlanTable::kAllocation, PlanTable::kFrames) : nullptr;
}

// The next of the op's takes that it may be: a program may allocate more in an op than was planned, or less, and so may a
// re-run (of a call that consists of several only some run again, and numbers are kept by value).
bool Plan::find_take(size_t bytes, int64_t swap, uint32_t again, bool outlives) {
  const auto is_it = [&](const PlanTable::Take& take) { return take.swap == swap && take.again == again && take.bytes == bytes; };
  std::optional<size_t> next;
  if (outlives) next = find_next([&](const PlanTable::Take& take) { return !take.is_temporary && is_it(take); });
  if (!next) next = find_next(is_it);
  if (next) pass_over(*next);
  return next.has_value();
}

void Plan::pass_over(size_t until) {
  while (ordinal_ < until) note_due(ordinal_++);
}

void Plan::op_begins(size_t op) {
  if (!begun_) return;
  pass_over(iteration_begin_ + table_.op_begin[op]);
  op_end_ = iteration_begin_ + table_.op_begin[op + 1];
}

// (An input that lies exactly where a take is to lie, and stays, may be handed over to it.)
size_t Plan::clear_for_op() {
  std::vector<Region*> others = out_of_place();
  size_t bytes = 0;
  for (size_t next = others.empty() ? op_end_ : ordinal_; next < op_end_; ++next) {
    const PlanTable::Take& take = table_.takes[next];
    if (take.slots == 0) continue;
    const Region& region = regions_[slot_of(take, period_)];
    bool is_clear = true;
    for (Region*& other : others) {
      if (other == nullptr || other->is_free() || !overlap(*other, region)) continue;
      if (make_way_(other))
        other = nullptr;  // a guest is no more
      else
        is_clear &= other->offset == region.offset && other->size == region.size;
    }
    bytes += is_clear ? 0 : take.bytes;
  }
  return bytes;
}

// What is taken, and is a guest, came back before its time, or should be free by the end of the op.
std::vector<Region*> Plan::out_of_place() {
  std::vector<Region*> others;
  for (Region& guest : guests_) others.push_back(&guest);
  for (uint32_t slot : late_) others.push_back(&regions_[slot]);
  for (size_t next = ordinal_; begun_ && next < op_end_; ++next)
    for (uint32_t i = table_.due_begin[next]; i < table_.due_begin[next + 1]; ++i) {
      const PlanTable::Due& due = table_.due[i];
      if (due.periods_ago == 0 && due.take >= ordinal_) continue;  // it is the op's own
      const uint32_t slot = slot_of(table_.takes[due.take], period_ - due.periods_ago);
      if (!regions_[slot].is_free() && is_late_[slot] == Late::kNot) others.push_back(&regions_[slot]);
    }
  return others;
}

void Plan::skip(int64_t swap) {
  if (begun_ && ordinal_ < op_end_ && table_.takes[ordinal_].swap == swap) note_due(ordinal_++);
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
  Region& region = regions_[slot];
  for (const Region& other : regions_)
    if (!other.is_free() && overlap(other, region)) return nullptr;
  if (!clear(region, nullptr)) return nullptr;
  mark_late(slot, Late::kMayLeave);
  return give(slot, owner);
}

Region* Plan::give(uint32_t slot, void* owner) {
  Region& region = regions_[slot];
  region.owner = owner;
  used_ += region.size;
  peak_end_ = std::max(peak_end_, region.end());
  return &region;
}

void Plan::mark_late(uint32_t slot, Late late) {
  is_late_[slot] = late;
  late_.push_back(slot);
}

size_t Plan::taken_end() const {
  size_t end = 0;
  for (const Region& region : regions_)
    if (!region.is_free()) end = std::max(end, region.end());
  for (const Region& guest : guests_) end = std::max(end, guest.end());
  return end;
}

Region* Plan::mismatch() {
  ++mismatches_;
  return nullptr;
}

// What is in the region's way goes, but for `over`. False if any of it outstays its time, or cannot be moved.
bool Plan::clear(Region& region, const Region* over) {
  std::vector<Region*> in_the_way;
  for (uint32_t slot : late_)
    if (&regions_[slot] != over && overlap(regions_[slot], region)) {
      if (is_late_[slot] != Late::kMayLeave) return false;
      in_the_way.push_back(&regions_[slot]);
    }
  for (Region& guest : guests_)
    if (overlap(guest, region)) in_the_way.push_back(&guest);
  return std::all_of(in_the_way.begin(), in_the_way.end(), make_way_) && (region.is_free() || &region == over);
}

std::vector<Region> Plan::all_taken() const {
  std::vector<Region> taken(guests_.begin(), guests_.end());
  std::copy_if(regions_.begin(), regions_.end(), std::back_inserter(taken), [](const Region& region) { return !region.is_free(); });
  std::sort(taken.begin(), taken.end(), is_lower);
  return taken;
}

size_t Plan::widest_gap() const { return widest_between(all_taken()); }

size_t Plan::widest_gap_beside_op() const {
  std::vector<Region> taken = all_taken();
  for (size_t next = ordinal_; begun_ && next < op_end_; ++next) {
    const PlanTable::Take& take = table_.takes[next];
    if (take.slots != 0 && !take.is_temporary) taken.push_back(regions_[slot_of(take, period_)]);
  }
  std::sort(taken.begin(), taken.end(), is_lower);
  return widest_between(taken);
}

// `regions` are in the order of addresses.
size_t Plan::widest_between(const std::vector<Region>& regions) const {
  size_t begin = zone_offset_, widest = 0;
  for (const Region& region : regions) {
    widest = std::max(widest, std::max(region.offset, begin) - begin);
    begin = std::max(begin, region.end());
  }
  return std::max(widest, zone_offset_ + table_.bytes - begin);
}

// What is high is wanted only when the iteration needs most.
Region* Plan::lodge(size_t bytes, void* owner) {
  size_t end = zone_offset_ + table_.bytes;
  const std::vector<Region> taken = all_taken();
  for (auto region = taken.rbegin(); region != taken.rend() && end < region->end() + bytes; ++region) end = region->offset;
  return end < zone_offset_ + bytes ? nullptr : seat(end - bytes, bytes, owner);
}

Region* Plan::seat(size_t offset, size_t bytes, void* owner) {
  guests_.push_back({offset, bytes, owner, nullptr, nullptr});
  used_ += bytes;
  peak_end_ = std::max(peak_end_, offset + bytes);
  return &guests_.back();
}

void Plan::give_back(Region* region) {
  used_ -= region->size;
  const auto guest = std::find_if(guests_.begin(), guests_.end(), [&](const Region& each) { return &each == region; });
  if (guest != guests_.end()) return void(guests_.erase(guest));
  region->owner = nullptr;
  auto slot = static_cast<uint32_t>(region - regions_.data());
  if (is_late_[slot] == Late::kNot) return;
  is_late_[slot] = Late::kNot;
  late_.erase(std::find(late_.begin(), late_.end(), slot));
}

// The slots that should be free before take `ordinal`: note those that are not.
void Plan::note_due(size_t ordinal) {
  for (uint32_t i = table_.due_begin[ordinal]; i < table_.due_begin[ordinal + 1]; ++i) {
    const PlanTable::Due& due = table_.due[i];
    uint32_t slot = slot_of(table_.takes[due.take], period_ - due.periods_ago);
    if (!regions_[slot].is_free() && is_late_[slot] == Late::kNot) mark_late(slot, Late::kOutstays);
  }
}

// Takes that did not come are passed over; what is due until the end is due.
void Plan::iteration_ends() {
  if (!std::exchange(begun_, true)) return;
  mismatches_before_ = mismatches_;
  pass_over(iteration_end_);
  const size_t count = table_.takes.size();
  if (ordinal_ == count) {
    note_due(count);
    ordinal_ = iteration_end_ = 0;
    ++period_;
  }
  iteration_begin_ = ordinal_;
  iteration_end_ += count / table_.iterations;
  begin_iteration();
}

}  // namespace memfit
