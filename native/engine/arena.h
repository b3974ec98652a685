// Arena: the one contiguous reservation that holds everything resident.
// It has three tenants (ordinary regions, the shelf, a plan's zone), and methods for each of them. It knows of addresses
// alone: an owner is a pointer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "address_space.h"
#include "plan.h"
#include "ranges.h"

namespace memfit {

class Arena {
 public:
  // `stand_in` owns the shelf, a plan's zone and punched holes, as regions.
  Arena(std::unique_ptr<AddressSpace> space, size_t limit_bytes, size_t alignment, void* stand_in);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* base() const { return base_; }
  size_t round(size_t bytes) const { return align_up(bytes, ranges.alignment()); }
  // There are bytes behind the region from now on. Raises TierFailure, and gives the region back, when the device has
  // no more.
  void back(Region* region);
  // Likewise, and nothing lies there yet.
  void back(size_t from, size_t to);

  // The limit under the budget. `ranges` may have a higher one while it gives way for an op.
  size_t limit() const { return limit_; }
  // Lower that. Where the shelf ends beyond it, so does it no more: what stays there is an ordinary region from now on.
  // `moved(region)` for each of them: the owner's region is another one now.
  template <typename Moved>
  void set_limit(size_t limit_bytes, const Moved& moved);
  // It gives way, up to `limit_bytes`,
  void grow(size_t limit_bytes);
  // and is back, but for a plan's zone.
  template <typename Moved>
  void shrink(size_t limit_bytes, const Moved& moved);
  // What lies beyond the limit is about to come back: this no longer gives way, and the addresses of punched holes can be
  // given out again. Until `end_return`, `spare` says how much memory there may be.
  template <typename Moved>
  void begin_return(const Moved& moved);
  void end_return() { most_backed_ = kAnyBytes; }
  bool is_returning() const { return most_backed_ != kAnyBytes; }
  // On its way, `mover` has its first bytes at `target`, and the others where it lies.
  struct Moving {
    const Region& mover;
    size_t target;
    size_t begun = 0;  // bytes that are at the target, or about to be;
    size_t left = 0;   // and those that are no longer needed where they were
  };
  // The bytes of the pages that may get memory besides those for all that is taken, so that there are no more than when the return
  // began. Below 0, so many are missing. Outside a return, any number.
  int64_t spare(const Moving& moving) const;
  // All other pages go back to the system.
  void release_pages_beside(const Moving& moving);
  // Pages that nothing lies on go back to the system.
  void release_free_pages();

  // The limit rises by so many bytes, rounded up to pages, for which holes are punched below it: whole pages that nothing lies
  // on go back to the system, and nobody is given their addresses. So there are never bytes behind more pages than before.
  // False, with nothing done, when too few such pages are free, with those for `spare` bytes besides, or there are no more
  // addresses.
  bool punch(size_t bytes, size_t spare = 0);
  // A place right beyond the limit, by punched holes, that leaves pages free for `spare` bytes. nullptr when that cannot be.
  Region* take_beyond(size_t bytes, void* owner, size_t spare = 0);
  // The bytes of whole pages below the limit on which nothing lies that `stays`.
  template <typename Stays>
  size_t page_bytes_without(const Stays& stays) const;
  // The addresses of all punched holes can be given out again.
  void fill_punched();
  size_t punched_bytes() const { return punched_bytes_; }
  // Holes are punched in so many bytes; the limit has so many of them.
  size_t page() const { return space_->page_at(ranges.most() - 1); }
  size_t pages() const { return limit_ / page(); }

  // Let a plan hand out [offset, offset + bytes), at once or from the next iteration on. What lies there, where none of
  // the plan's slots does, stays. `moved` as above. Raises std::logic_error beyond the limit, with nothing changed.
  template <typename Moved>
  void set_plan(PlanTable table, size_t offset, bool at_once, std::function<bool(Region*)> make_way, const Moved& moved);
  // Make the plan's taken slots ordinary regions again, and the rest of its zone free.
  template <typename Moved>
  void drop_plan(const Moved& moved);
  Plan* plan() const { return plan_.get(); }

  // The shelf: the low end of the arena, for small storages and for what must stay where it is, so that none of them
  // ever lies between large ones. [0, shelf_end()) is its own. nullptr when it has no room for so many bytes.
  Region* take_on_shelf(size_t bytes, void* owner) { return shelf_end_for(bytes) <= shelf_end_ ? shelf_.take(bytes, owner) : nullptr; }
  // Where it has to end for so many bytes more; SIZE_MAX if it can't.
  size_t shelf_end_for(size_t bytes) const {
    const Region* hole = shelf_.hole_for(bytes);
    return hole == nullptr ? SIZE_MAX : hole->offset + round(bytes);
  }
  size_t shelf_end() const { return shelf_end_; }
  size_t shelf_used() const { return shelf_.used(); }
  Ranges& shelf() { return shelf_; }
  Region* first_on_shelf() const { return shelf_.first(); }
  bool on_shelf(const Region* region) const { return region->home == &shelf_; }
  // It lies in the plan's zone.
  bool is_planned(const Region* region) const { return region->home == nullptr; }
  // [shelf_end(), end) must be free: std::logic_error otherwise, with nothing changed.
  void grow_shelf(size_t end);
  // An ordinary region that begins where the shelf ends belongs to it from now on, as the one that is returned. nullptr when
  // it begins elsewhere, or ends beyond the limit.
  Region* put_on_shelf(Region* region);
  // Give back what is free at its upper end, but for less than `slack` bytes.
  bool trim_shelf(size_t slack);

  // Make what is on the shelf ordinary regions, where they are, and begin with an empty one.
  template <typename Moved>
  void dissolve_shelf(const Moved& moved) { cut_shelf(0, moved); }

  void give_back(Region* region);
  // The region stays taken, and has no bytes behind it from now on.
  void vacate(const Region* region) { space_->drop(region->offset, region->end()); }
  // As `give_back`; its pages go back to the system.
  void give_back_with_pages(Region* region);
  size_t used() const {
    return ranges.used() - punched_bytes_ - (shelf_end_ - shelf_.used()) - (plan_ ? zone_->size - plan_->used() : 0);
  }
  // The highest address in use, or the limit where what lies beyond that has its bytes from punched holes: now, and ever
  // since the last reset.
  size_t footprint() const;
  size_t peak_footprint() const;
  void reset_footprint();
  // Raises std::logic_error if what this says of itself is not so: for tests, and under stress.
  void check() const;

  Ranges ranges;

 private:
  static constexpr int64_t kAnyBytes = INT64_MAX;

  std::vector<std::pair<size_t, size_t>> taken_with(const Moving& moving) const;
  template <typename Moved>
  void cut_shelf(size_t end, const Moved& moved);
  // The whole pages of a hole.
  std::pair<size_t, size_t> pages_within(const Region& hole) const;

  void* const stand_in_;
  Region* zone_ = nullptr;  // the plan's
  Ranges shelf_;
  Region* shelf_region_ = nullptr;  // among `ranges`: [0, shelf_end_), if that is anything
  size_t shelf_end_ = 0;            // within the limit
  size_t limit_;
  size_t highest_ = 0;  // that the limit has given way to since the last reset of the footprint, without punched holes
  std::vector<Region*> punched_;  // among `ranges`
  size_t punched_bytes_ = 0;
  std::pair<size_t, size_t> coming_ = {};  // what is given bytes just now
  int64_t most_backed_ = kAnyBytes;  // of whole pages, during a return
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<AddressSpace> space_;
  char* base_;
};

template <typename Stays>
size_t Arena::page_bytes_without(const Stays& stays) const {
  size_t bytes = 0, from = 0;
  const auto add_until = [&](size_t to) { bytes += std::max(to / page() * page(), round_up(from, page())) - round_up(from, page()); };
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next) {
    if (!stays(*r)) continue;
    add_until(r->offset);
    from = r->end();
  }
  add_until(ranges.limit());
  return bytes;
}

template <typename Moved>
void Arena::set_limit(size_t limit_bytes, const Moved& moved) {
  fill_punched();
  shrink(limit_bytes, moved);
  limit_ = ranges.limit();
}

template <typename Moved>
void Arena::shrink(size_t limit_bytes, const Moved& moved) {
  ranges.shrink(std::max(limit_bytes, plan_ ? zone_->end() : 0));
  if (shelf_end_ > ranges.limit()) cut_shelf(ranges.limit(), moved);
}

template <typename Moved>
void Arena::begin_return(const Moved& moved) {
  most_backed_ = static_cast<int64_t>(round_up(ranges.limit() - punched_bytes_, page()));
  fill_punched();
  shrink(limit_, moved);
}

// What is on the shelf and ends beyond `end` is so no more.
template <typename Moved>
void Arena::cut_shelf(size_t end, const Moved& moved) {
  if (shelf_region_ == nullptr) return;
  std::vector<Region*> beyond;
  for (Region* r = shelf_.first(); r != nullptr; r = r->next)
    if (!r->is_free() && r->end() > end) beyond.push_back(r);
  if (!beyond.empty()) end = std::min(end, beyond.front()->offset);
  std::vector<Region> parts;
  if (end > 0) parts.push_back({0, end, stand_in_, nullptr, nullptr});
  for (Region* region : beyond) parts.push_back(*region), shelf_.give_back(region);
  shelf_end_ = end;
  ranges.divide(std::exchange(shelf_region_, nullptr), parts, [&](Region* part) {
    if (part->owner == stand_in_)
      shelf_region_ = part;
    else
      moved(part);
  });
}

template <typename Moved>
void Arena::set_plan(PlanTable table, size_t offset, bool at_once, std::function<bool(Region*)> make_way, const Moved& moved) {
  if (plan_ || punched_bytes_ != 0 || offset < shelf_end_ || offset + table.bytes > ranges.limit()) throw std::logic_error("memfit: a plan's zone has no place");
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
  ranges.divide(std::exchange(zone_, nullptr), plan->all_taken(), moved);
}

}  // namespace memfit
