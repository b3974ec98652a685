#include "arena.h"

#include <algorithm>

#include "recorder.h"

namespace memfit {

Arena::Arena(Device& device, size_t limit_bytes)
    : ranges(limit_bytes, device.alignment()), shelf_(std::make_unique<Ranges>(limit_bytes, device.alignment())), device_(device), space_(device.reserve(limit_bytes)), base_(space_->base()) {
  Recorder::pin(zone_owner_, nullptr), Recorder::pin(shelf_owner_, nullptr);
}

void Arena::back(Region* region) {
  try {
    space_->back(region->offset, region->end());
  } catch (...) {
    give_back(region);
    throw;
  }
}

// The shelf may have reached beyond while there was room: it ends there, too, or with what stays on it.
void Arena::shrink(size_t limit_bytes) {
  size_t end = limit_bytes / ranges.alignment() * ranges.alignment();
  for (const Region* r = shelf_->first(); r != nullptr; r = r->next)
    if (!r->is_free()) end = std::max(end, r->end());
  if (shelf_end_ > end) set_shelf(end);
  ranges.shrink(limit_bytes);
  for (Region* r = ranges.first(); r != nullptr; r = r->next)
    if (r->is_free()) space_->drop(r->offset, r->end());
}

void Arena::grow_shelf(size_t end) {
  if (end > shelf_end_) set_shelf(end);
}

bool Arena::trim_shelf(size_t slack) {
  const Region* tail = shelf_->largest_hole();
  if (tail == nullptr || tail->end() != shelf_->limit() || tail->offset + slack >= shelf_end_) return false;
  set_shelf(tail->offset);
  return true;
}

void Arena::set_shelf(size_t end) {
  if (shelf_region_ != nullptr) ranges.give_back(shelf_region_);
  shelf_end_ = end;
  shelf_region_ = end == 0 ? nullptr : ranges.reserve_at(ranges.first(), 0, end, &shelf_owner_);
}

void Arena::give_back(Region* region) {
  if (on_shelf(region))
    shelf_->give_back(region);
  else if (is_planned(region))
    plan_->give_back(region);
  else
    ranges.give_back(region);
}

size_t Arena::footprint() const {
  size_t end = plan_ ? plan_->taken_end() : 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && r != shelf_region_ && !(plan_ && r == zone_)) end = std::max(end, r->end());
  for (const Region* r = end == 0 ? shelf_->first() : nullptr; r != nullptr; r = r->next)
    if (!r->is_free()) end = r->end();
  return end;
}

size_t Arena::peak_footprint() const {
  return std::max({ranges.footprint(), shelf_->footprint(), plan_ ? plan_->peak_end() : 0});
}

void Arena::reset_footprint() {
  ranges.reset_footprint({shelf_region_, plan_ ? zone_ : nullptr});
  shelf_->reset_footprint();
  if (plan_) plan_->reset_peak();
}

void Arena::give_back_with_pages(Region* region) {
  const size_t page = device_.page(), offset = region->offset, end = region->end();
  space_->drop(offset, end);
  give_back(region);
  // Pages that it shared with neighbours which are free too.
  if (const Region* hole = page > 1 ? ranges.hole_at(offset) : nullptr)
    space_->drop(std::max(offset / page * page, hole->offset), std::min(round_up(end, page), hole->end()));
}

}  // namespace memfit
