#include "ranges.h"

#include <algorithm>
#include <string>

namespace memfit {

Ranges::Ranges(size_t limit, size_t alignment)
    : size_(limit / alignment * alignment), limit_(size_), alignment_(alignment), head_(nullptr) {
  add_hole(insert_after(nullptr, 0, size_));
}

Ranges::~Ranges() {
  for (Region* r = head_; r != nullptr;) {
    Region* next = r->next;
    delete r;
    r = next;
  }
}

void Ranges::add_hole(Region* region) {
  if (!is_hole(region)) return;
  region->place = holes_.insert(region).first;
  free_bytes_ += region->size;
}

void Ranges::remove_hole(Region* region) {
  holes_.erase(region->place);
  free_bytes_ -= region->size;
}

// A hole is cut, or grows. Most stay where they are among the others.
void Ranges::change_hole(Region* region, size_t offset, size_t size) {
  free_bytes_ += size - region->size;
  region->offset = offset;
  region->size = size;
  const Holes::iterator place = region->place, next = std::next(place);
  const bool is_in_order = (place == holes_.begin() || BySize()(*std::prev(place), region)) && (next == holes_.end() || BySize()(region, *next));
  if (!is_in_order) region->place = holes_.insert(holes_.extract(place)).position;
}

// Into the list, `before` being nullptr for its beginning. Free, and no hole yet.
Region* Ranges::insert_after(Region* before, size_t offset, size_t size) {
  Region*& link = before != nullptr ? before->next : head_;
  link = new Region{offset, size, nullptr, before, link, {}, this};
  if (link->next != nullptr) link->next->prev = link;
  return link;
}

void Ranges::unlink(Region* region) {
  (region->prev != nullptr ? region->prev->next : head_) = region->next;
  if (region->next != nullptr) region->next->prev = region->prev;
  delete region;
}

Region* Ranges::split_after(Region* region, size_t size) {
  Region* rest = insert_after(region, region->offset + size, region->size - size);
  region->size = size;
  return rest;
}

void Ranges::absorb_next(Region* region) {
  region->size += region->next->size;
  unlink(region->next);
}

Region* Ranges::hole_for(size_t size) const {
  Region probe{0, align_up(size, alignment_), nullptr, nullptr, nullptr};
  const auto it = holes_.lower_bound(&probe);
  return it == holes_.end() ? nullptr : *it;
}

Region* Ranges::take(size_t size, void* owner, bool high) {
  Region* hole = hole_for(size);
  if (hole == nullptr) return nullptr;
  return take_at(hole, high ? hole->end() - align_up(size, alignment_) : hole->offset, size, owner);
}

Region* Ranges::take_lowest(size_t size, void* owner) {
  size = align_up(size, alignment_);
  Region probe{0, size, nullptr, nullptr, nullptr};
  Region* lowest = nullptr;
  for (auto it = holes_.lower_bound(&probe); it != holes_.end(); ++it)
    if (lowest == nullptr || (*it)->offset < lowest->offset) lowest = *it;
  return lowest == nullptr ? nullptr : take_at(lowest, lowest->offset, size, owner);
}

Region* Ranges::take_outside(size_t size, void* owner, size_t avoid_from, size_t avoid_to) {
  size = align_up(size, alignment_);
  Region probe{0, size, nullptr, nullptr, nullptr};
  for (auto it = holes_.lower_bound(&probe); it != holes_.end(); ++it)
    if ((*it)->end() <= avoid_from || (*it)->offset >= avoid_to) return take_at(*it, (*it)->offset, size, owner);
  return nullptr;
}

Region* Ranges::hole_at(size_t offset) const {
  for (Region* hole : holes_)
    if (hole->offset <= offset && offset < hole->end()) return hole;
  return nullptr;
}

Region* Ranges::take_at(Region* hole, size_t offset, size_t size, void* owner) {
  size = align_up(size, alignment_);
  if (!hole->is_free() || offset < hole->offset || offset + size > hole->end() || offset + size > limit_)
    throw std::logic_error("memfit: a range was taken outside a hole");
  const size_t below = offset - hole->offset, above = hole->end() - offset - size;
  Region* region = hole;
  if (below == 0 && above == 0) {
    remove_hole(hole);
  } else if (below == 0) {
    region = insert_after(hole->prev, offset, size);
    change_hole(hole, offset + size, above);
  } else {
    region = insert_after(hole, offset, size);
    if (above != 0) add_hole(insert_after(region, offset + size, above));
    change_hole(hole, hole->offset, below);
  }
  region->owner = owner;
  used_ += size;
  footprint_ = std::max(footprint_, region->end());
  return region;
}

Region* Ranges::reserve_at(Region* hole, size_t offset, size_t size, void* owner) {
  size_t before = footprint_;
  Region* region = take_at(hole, offset, size, owner);
  footprint_ = before;
  return region;
}

// A hole never crosses the limit: what lies beyond it is lost, not free.
bool Ranges::may_join(const Region* neighbour, const Region* region) const {
  return neighbour != nullptr && neighbour->is_free() && (neighbour->offset < limit_) == (region->offset < limit_);
}

void Ranges::give_back(Region* region) {
  if (region->home != this) throw std::logic_error("memfit: a range was given back to others than it was taken from");
  used_ -= region->size;
  region->owner = nullptr;
  if (region->offset < limit_ && region->end() > limit_) {
    Region* rest = split_after(region, limit_ - region->offset);
    if (may_join(rest->next, rest)) absorb_next(rest);
  }
  const bool is_beyond = region->offset >= limit_;
  Region *below = region->prev, *above = region->next;
  const bool joins_below = may_join(below, region), joins_above = may_join(above, region);
  if (is_beyond) {
    if (joins_above) absorb_next(region);
    if (joins_below) absorb_next(below);
  } else if (joins_below) {
    const size_t end = joins_above ? above->end() : region->end();
    if (joins_above) remove_hole(above), unlink(above);
    unlink(region);
    change_hole(below, below->offset, end - below->offset);
  } else if (joins_above) {
    const size_t offset = region->offset;
    unlink(region);
    change_hole(above, offset, above->end() - offset);
  } else {
    add_hole(region);
  }
}

Region* Ranges::keep_last(Region* region, size_t size) {
  size = align_up(size, alignment_);
  if (size >= region->size) return region;
  Region* rest = cut_off(region, region->size - size);
  give_back(region);
  return rest;
}

// A taken region keeps its first `size` bytes. Returns what its owner has of the others.
Region* Ranges::cut_off(Region* region, size_t size) {
  Region* rest = split_after(region, size);
  rest->owner = region->owner;
  return rest;
}

void Ranges::lengthen(Region* region, size_t end) {
  if (end <= region->end()) return;
  Region* hole = region->next;
  if (hole == nullptr || !is_hole(hole) || end > hole->end()) throw std::logic_error("memfit: a range was to grow over what is taken");
  const size_t more = end - region->end();
  if (end == hole->end())
    remove_hole(hole), unlink(hole);
  else
    change_hole(hole, end, hole->end() - end);
  region->size += more;
  used_ += more;
}

bool Ranges::may_slide(const Region& region, size_t target) const {
  const size_t end = target + region.size;
  if (end > limit_) return false;
  for (const Region* r = region.prev; r != nullptr && r->end() > target; r = r->prev)
    if (!r->is_free() && r->offset < end) return false;
  for (const Region* r = region.next; r != nullptr && r->offset < end; r = r->next)
    if (!r->is_free() && r->end() > target) return false;
  return true;
}

Region* Ranges::slide(Region* region, size_t target) {
  if (!may_slide(*region, target)) throw std::logic_error("memfit: a range was to slide over what is taken");
  const size_t size = region->size;
  void* const owner = region->owner;
  give_back(region);
  return take_at(hole_at(target), target, size, owner);
}

namespace {

void hold(bool is_so, const char* what) {
  if (!is_so) throw std::logic_error(std::string("memfit: the books of ranges are not in order: ") + what);
}

}  // namespace

void Ranges::check() const {
  size_t end = 0, used = 0, free = 0, holes = 0;
  for (const Region* r = head_; r != nullptr; end = r->end(), r = r->next) {
    hold(r->offset == end && r->home == this, "a region does not begin where the one below it ends");
    hold(r->next == nullptr || r->next->prev == r, "a region's neighbours do not agree");
    hold(r->is_free() || r->size % alignment_ == 0, "a region has a part of a line");
    hold(!r->is_free() || r->prev == nullptr || !may_join(r->prev, r), "free space is in two parts");
    if (!r->is_free()) used += r->size;
    if (!is_hole(r)) continue;
    hold(r->end() <= limit_ && holes_.count(const_cast<Region*>(r)) == 1, "a hole is missing, or crosses the limit");
    free += r->size, ++holes;
  }
  hold(end == size_, "some of the space is lost");
  hold(used == used_ && free == free_bytes_ && holes == holes_.size(), "the sums are wrong");
  for (const Region* hole : holes_) hold(is_hole(hole) && *hole->place == hole, "what is taken is among the holes");
}

void Ranges::shrink(size_t limit) {
  limit = limit / alignment_ * alignment_;
  if (limit >= limit_) return;
  limit_ = limit;
  find_holes();
}

void Ranges::grow(size_t limit) {
  limit = std::min(limit / alignment_ * alignment_, size_);
  if (limit <= limit_) return;
  limit_ = limit;
  find_holes();
}

// The limit has changed: free regions are joined, cut where it lies now, and those below it are holes.
void Ranges::find_holes() {
  holes_.clear();
  free_bytes_ = 0;
  for (Region* r = head_; r != nullptr; r = r->next) {
    if (!r->is_free()) continue;
    while (r->next != nullptr && r->next->is_free()) absorb_next(r);
    if (r->offset < limit_ && r->end() > limit_) split_after(r, limit_ - r->offset);
    add_hole(r);
  }
}

const Region* Ranges::last_hole() const {
  const Region* last = nullptr;
  for (const Region* hole : holes_)
    if (hole->end() == limit_) last = hole;
  return last;
}

void Ranges::reset_footprint(std::initializer_list<const Region*> except) {
  footprint_ = 0;
  for (Region* r = head_; r != nullptr; r = r->next)
    if (!r->is_free() && r->offset < limit_ && std::find(except.begin(), except.end(), r) == except.end())
      footprint_ = std::max(footprint_, r->end());
}

}  // namespace memfit
