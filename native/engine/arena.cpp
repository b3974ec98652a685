#include "arena.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace memfit {

Arena::Arena(std::unique_ptr<AddressSpace> space, size_t limit_bytes, size_t alignment, void* stand_in)
    : ranges(limit_bytes, alignment), stand_in_(stand_in), shelf_(limit_bytes, alignment), limit_(ranges.limit()), space_(std::move(space)), base_(space_->base()) {}

void Arena::back(Region* region) {
  try {
    space_->back(region->offset, region->end());
  } catch (...) {
    give_back(region);
    throw;
  }
}

// (The device may ask for that when it has no more memory.)
void Arena::back(size_t from, size_t to) {
  coming_ = {from, to};
  try {
    space_->back(from, to);
  } catch (...) {
    coming_ = {};
    throw;
  }
  coming_ = {};
}

void Arena::release_free_pages() {
  if (is_returning()) return;  // they are gone but for those that have something on its way to them
  const auto drop = [this](size_t from, size_t to) {
    if (from < to) space_->drop(from, to);
  };
  for (Region* r = ranges.first(); r != nullptr; r = r->next) {
    if (!r->is_free()) continue;
    drop(r->offset, std::min(r->end(), coming_.first));
    drop(std::max(r->offset, coming_.second), r->end());
  }
}

// From where to where, in the order of addresses.
std::vector<std::pair<size_t, size_t>> Arena::taken_with(const Moving& moving) const {
  std::vector<std::pair<size_t, size_t>> spans;
  const auto add = [&](size_t from, size_t to) {
    if (from < to) spans.emplace_back(from, to);
  };
  add(moving.target, moving.target + moving.begun);
  add(moving.mover.offset + moving.left, moving.mover.end());
  for (const Region* r = ranges.first(); r != nullptr; r = r->next)
    if (!r->is_free() && r->owner != moving.mover.owner) add(r->offset, r->end());
  std::sort(spans.begin(), spans.end());
  return spans;
}

int64_t Arena::spare(const Moving& moving) const {
  if (!is_returning()) return kAnyBytes;
  size_t bytes = 0, end = 0;
  for (const auto& [from, to] : taken_with(moving)) {
    const size_t last = std::max(round_up(to, page()), end);
    bytes += last - std::max(from / page() * page(), end);
    end = last;
  }
  return most_backed_ - static_cast<int64_t>(bytes);
}

void Arena::release_pages_beside(const Moving& moving) {
  size_t end = 0;
  for (const auto& [from, to] : taken_with(moving)) {
    if (from > end) space_->drop(end, from);
    end = std::max(end, to);
  }
  space_->drop(end, ranges.most());
}

// (Whole pages only, so that the parts of pages at the ends of holes never add up.)
bool Arena::punch(size_t bytes, size_t spare) {
  const size_t more = round_up(bytes, page()), limit = ranges.limit() + more;
  std::vector<Region*> holes;
  size_t found = 0;
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit() && found < more + spare; r = r->next)
    if (const size_t size = r->is_free() ? pages_within(*r).second : 0; size != 0) holes.push_back(r), found += size;
  if (found < more + spare || limit > ranges.most()) return false;
  punched_bytes_ += more;
  size_t missing = more;
  for (Region* hole : holes) {
    const auto [from, whole] = pages_within(*hole);
    const size_t size = std::min(whole, missing);
    if (size == 0) break;
    missing -= size;
    space_->drop(from, from + size);
    punched_.push_back(ranges.reserve_at(hole, from, size, stand_in_));
  }
  ranges.grow(limit);
  return true;
}

// Where they begin, and their bytes.
std::pair<size_t, size_t> Arena::pages_within(const Region& hole) const {
  const size_t from = round_up(hole.offset, page()), to = hole.end() / page() * page();
  return {from, to > from ? to - from : 0};
}

void Arena::fill_punched() {
  for (Region* region : punched_) ranges.give_back(region);
  punched_.clear();
  punched_bytes_ = 0;
}

Region* Arena::take_beyond(size_t bytes, void* owner, size_t spare) {
  const size_t begin = ranges.limit(), end = begin + round(bytes);
  const Region* above = ranges.first();
  while (above != nullptr && above->end() <= begin) above = above->next;
  const bool is_there = above != nullptr && above->is_free() && above->end() >= end;
  return is_there && punch(end - begin, spare) ? ranges.take_at(ranges.hole_at(begin), begin, end - begin, owner) : nullptr;
}

void Arena::grow(size_t limit_bytes) {
  ranges.grow(limit_bytes);
  highest_ = std::max(highest_, ranges.limit() - punched_bytes_);
}

void Arena::grow_shelf(size_t end) {
  if (end <= shelf_end_) return;
  if (shelf_region_ == nullptr)
    shelf_region_ = ranges.reserve_at(ranges.first(), 0, end, stand_in_);
  else
    ranges.lengthen(shelf_region_, end);
  shelf_end_ = end;
}

bool Arena::trim_shelf(size_t slack) {
  const Region* tail = shelf_.last_hole();
  if (tail == nullptr || tail->offset + slack >= shelf_end_) return false;
  cut_shelf(tail->offset, [](Region*) {});
  return true;
}

Region* Arena::put_on_shelf(Region* region) {
  const size_t offset = region->offset, size = region->size, end = region->end();
  void* const owner = region->owner;
  if (region->home != &ranges || offset != shelf_end_ || end > ranges.limit()) return nullptr;
  ranges.give_back(region);
  grow_shelf(end);
  return shelf_.take_at(shelf_.hole_at(offset), offset, size, owner);
}

void Arena::give_back(Region* region) {
  if (on_shelf(region))
    shelf_.give_back(region);
  else if (is_planned(region))
    plan_->give_back(region);
  else
    ranges.give_back(region);
}

void Arena::check() const {
  const auto hold = [](bool is_so, const char* what) {
    if (!is_so) throw std::logic_error(std::string("memfit: the arena's books are not in order: ") + what);
  };
  ranges.check();
  shelf_.check();
  hold(limit_ + punched_bytes_ <= ranges.limit(), "its limit is below the budget's");
  hold(shelf_end_ <= ranges.limit(), "the shelf ends beyond the limit");
  hold((shelf_region_ != nullptr) == (shelf_end_ != 0), "the shelf is there, and its place is not, or the other way round");
  hold((zone_ != nullptr) == (plan_ != nullptr), "a plan is there, and its zone is not, or the other way round");
  hold(!plan_ || zone_->end() <= ranges.limit(), "a plan's zone ends beyond the limit");
  for (const Region* r = shelf_.first(); r != nullptr; r = r->next)
    hold(r->is_free() || r->end() <= shelf_end_, "something of the shelf's lies beyond it");
  size_t reserved = 0, punched = 0;
  for (const Region* r = ranges.first(); r != nullptr; r = r->next) {
    if (r->owner != stand_in_) continue;
    if (std::find(punched_.begin(), punched_.end(), r) != punched_.end()) {
      punched += r->size;
      continue;
    }
    const bool is_shelf = r == shelf_region_ && r->offset == 0 && r->end() == shelf_end_;
    hold(is_shelf || (r == zone_ && r->offset >= shelf_end_), "a place is reserved for nobody");
    ++reserved;
  }
  hold(punched == punched_bytes_, "a punched hole is none");
  hold(reserved == size_t{shelf_region_ != nullptr} + size_t{zone_ != nullptr}, "a place that is reserved is among no regions");
  size_t end = 0;
  for (const Region& region : plan_ ? plan_->all_taken() : std::vector<Region>()) {
    hold(region.offset >= std::max(end, zone_->offset) && region.end() <= zone_->end(), "two have one place in a plan's zone");
    end = region.end();
  }
}

size_t Arena::footprint() const {
  size_t end = plan_ ? plan_->taken_end() : 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && r->owner != stand_in_) end = std::max(end, r->end());
  for (const Region* r = end == 0 ? shelf_.first() : nullptr; r != nullptr; r = r->next)
    if (!r->is_free()) end = r->end();
  return std::min(end, ranges.limit() - punched_bytes_);
}

size_t Arena::peak_footprint() const {
  return std::min(std::max({ranges.footprint(), shelf_.footprint(), plan_ ? plan_->peak_end() : 0}), std::max(limit_, highest_));
}

void Arena::reset_footprint() {
  ranges.reset_footprint({shelf_region_, plan_ ? zone_ : nullptr});
  shelf_.reset_footprint();
  if (plan_) plan_->reset_peak();
  highest_ = ranges.limit() - punched_bytes_;
}

void Arena::give_back_with_pages(Region* region) {
  size_t from = region->offset, to = region->end();
  if (region->home == &ranges) {  // with the pages that it shares with neighbours which are free too
    const size_t first = space_->page_at(from), last = space_->page_at(to);
    if (region->prev != nullptr && region->prev->is_free()) from = std::max(region->prev->offset, from / first * first);
    if (region->next != nullptr && region->next->is_free()) to = std::min(region->next->end(), round_up(to, last));
  }
  space_->drop(from, to);
  give_back(region);
}

}  // namespace memfit
