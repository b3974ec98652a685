// Arena: the one contiguous reservation that holds everything resident.
// It has three tenants (ordinary regions, the shelf, a plan's zone), and methods for each of them. It knows of addresses
// alone: an owner is a pointer.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "address_space.h"
#include "plan.h"
#include "ranges.h"

namespace memfit {

class Arena {
 public:
  // `page`: of which the system takes back whole ones; `stand_in` owns the shelf and a plan's zone among the regions.
  Arena(std::unique_ptr<AddressSpace> space, size_t limit_bytes, size_t alignment, size_t page, void* stand_in);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* base() const { return base_; }
  size_t round(size_t bytes) const { return align_up(bytes, ranges.alignment()); }
  // There are bytes behind the region from now on. Raises TierFailure, and gives the region back, when the device has
  // no more.
  void back(Region* region);
  void back(size_t from, size_t to) { space_->back(from, to); }
  // Lower the limit and return the untouched pages beyond it to the system.
  void shrink(size_t limit_bytes);

  // Let a plan hand out [offset, offset + bytes), at once or from the next iteration on. What lies there, where none of
  // the plan's slots does, stays. `moved(region)` as below.
  template <typename Moved>
  void set_plan(PlanTable table, size_t offset, bool at_once, std::function<bool(Region*)> make_way, const Moved& moved);
  // Make the plan's taken slots ordinary regions again, and the rest of its zone free. Calls `moved(region)`
  // with each of them: the owner's region is another one now.
  template <typename Moved>
  void drop_plan(const Moved& moved);
  Plan* plan() const { return plan_.get(); }

  // The shelf: the low end of the arena, for small storages and for what must stay where it is, so that none of them
  // ever lies between large ones. [0, shelf_end()) is its own; a region beyond is only asked for.
  // nullptr when that would end beyond `end`.
  Region* take_on_shelf(size_t bytes, void* owner, size_t end = SIZE_MAX) {
    Region* region = shelf_->take(bytes, owner);
    if (region == nullptr || region->end() <= end) return region;
    leave_shelf(region);
    return nullptr;
  }
  void leave_shelf(Region* region) { shelf_->give_back(region); }
  size_t shelf_end() const { return shelf_end_; }
  size_t shelf_used() const { return shelf_->used(); }
  Ranges& shelf() { return *shelf_; }
  Region* first_on_shelf() const { return shelf_->first(); }
  bool on_shelf(const Region* region) const { return region->offset < shelf_end_; }
  // It lies in the plan's zone.
  bool is_planned(const Region* region) const { return plan_ && plan_->contains(region); }
  // [shelf_end(), end) must be free.
  void grow_shelf(size_t end);
  // Give back what is free at its upper end, but for less than `slack` bytes.
  bool trim_shelf(size_t slack);

  // Make what is on the shelf ordinary regions, where they are, and begin with an empty one. `moved` as above.
  template <typename Moved>
  void dissolve_shelf(const Moved& moved);

  void give_back(Region* region);
  // The region stays taken, and has no bytes behind it from now on.
  void vacate(const Region* region) { space_->drop(region->offset, region->end()); }
  // As `give_back`; its pages go back to the system.
  void give_back_with_pages(Region* region);
  size_t used() const {
    return ranges.used() - (shelf_end_ - shelf_->used()) - (plan_ ? zone_->size - plan_->used() : 0);
  }
  // The highest address in use: now, and ever since the last reset.
  size_t footprint() const;
  size_t peak_footprint() const;
  void reset_footprint();

  Ranges ranges;

 private:
  void set_shelf(size_t end);

  void* const stand_in_;
  Region* zone_ = nullptr;  // the plan's
  std::unique_ptr<Ranges> shelf_;
  Region* shelf_region_ = nullptr;  // among `ranges`
  size_t shelf_end_ = 0;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<AddressSpace> space_;
  char* base_;
  const size_t page_;
};

template <typename Moved>
void Arena::set_plan(PlanTable table, size_t offset, bool at_once, std::function<bool(Region*)> make_way, const Moved& moved) {
  std::vector<Region*> staying;
  for (Region* r = ranges.first(); r != nullptr && r->offset < offset + table.bytes; r = r->next)
    if (!r->is_free() && r->offset >= offset) staying.push_back(r);
  std::vector<Region> places;
  for (Region* region : staying) places.push_back(*region), ranges.give_back(region);
  zone_ = ranges.reserve_at(ranges.hole_at(offset), offset, table.bytes, stand_in_);
  plan_ = std::make_unique<Plan>(std::move(table), offset, at_once, std::move(make_way));
  for (const Region& place : places) moved(plan_->seat(place.offset, place.size, place.owner));
}

template <typename Moved>
void Arena::drop_plan(const Moved& moved) {
  if (!plan_) return;
  std::unique_ptr<Plan> plan = std::move(plan_);
  ranges.give_back(zone_);
  for (const Region& slot : plan->regions())
    if (!slot.is_free()) moved(ranges.take_at(ranges.hole_at(slot.offset), slot.offset, slot.size, slot.owner));
  for (const Region& guest : plan->guests()) moved(ranges.take_at(ranges.hole_at(guest.offset), guest.offset, guest.size, guest.owner));
}

template <typename Moved>
void Arena::dissolve_shelf(const Moved& moved) {
  if (shelf_region_ != nullptr) ranges.give_back(shelf_region_);
  shelf_region_ = nullptr;
  shelf_end_ = 0;
  std::unique_ptr<Ranges> before = std::exchange(shelf_, std::make_unique<Ranges>(ranges.limit(), ranges.alignment()));
  for (const Region* r = before->first(); r != nullptr; r = r->next)
    if (!r->is_free()) moved(ranges.take_at(ranges.hole_at(r->offset), r->offset, r->size, r->owner));
}

}  // namespace memfit
