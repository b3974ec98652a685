#include "ranges.h"

#include <algorithm>

namespace memfit {

Ranges::Ranges(size_t limit, size_t alignment)
    : size_(limit / alignment * alignment),
      limit_(size_),
      alignment_(alignment),
      head_(new Region{0, size_, nullptr, nullptr, nullptr}) {
  add_hole(head_);
}

Ranges::~Ranges() {
  for (Region* r = head_; r != nullptr;) {
    Region* next = r->next;
    delete r;
    r = next;
  }
}

void Ranges::add_hole(Region* region) {
  if (region->size == 0 || region->offset >= limit_) return;
  holes_.insert(region);
  free_bytes_ += region->size;
}

void Ranges::remove_hole(Region* region) {
  if (holes_.erase(region) != 0) free_bytes_ -= region->size;
}

Region* Ranges::split_after(Region* region, size_t size) {
  auto* rest = new Region{region->offset + size, region->size - size, nullptr, region, region->next};
  if (rest->next != nullptr) rest->next->prev = rest;
  region->next = rest;
  region->size = size;
  return rest;
}

void Ranges::absorb_next(Region* region) {
  Region* gone = region->next;
  region->size += gone->size;
  region->next = gone->next;
  if (gone->next != nullptr) gone->next->prev = region;
  delete gone;
}

Region* Ranges::take(size_t size, void* owner, bool high) {
  size = round_up(size, alignment_);
  Region probe{0, size, nullptr, nullptr, nullptr};
  auto it = holes_.lower_bound(&probe);
  if (it == holes_.end()) return nullptr;
  return take_at(*it, high ? (*it)->end() - size : (*it)->offset, size, owner);
}

Region* Ranges::take_lowest(size_t size, void* owner) {
  size = round_up(size, alignment_);
  Region probe{0, size, nullptr, nullptr, nullptr};
  Region* lowest = nullptr;
  for (auto it = holes_.lower_bound(&probe); it != holes_.end(); ++it)
    if (lowest == nullptr || (*it)->offset < lowest->offset) lowest = *it;
  return lowest == nullptr ? nullptr : take_at(lowest, lowest->offset, size, owner);
}

Region* Ranges::take_outside(size_t size, void* owner, size_t avoid_from, size_t avoid_to) {
  size = round_up(size, alignment_);
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
  size = round_up(size, alignment_);
  if (!hole->is_free() || offset < hole->offset || offset + size > hole->end() || offset + size > limit_)
    throw std::logic_error("memfit: a range was taken outside a hole");
  remove_hole(hole);
  Region* region = hole;
  if (offset > hole->offset) {
    region = split_after(hole, offset - hole->offset);
    add_hole(hole);
  }
  if (region->size > size) add_hole(split_after(region, size));
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

void Ranges::give_back(Region* region) {
  used_ -= region->size;
  region->owner = nullptr;
  if (region->offset < limit_ && region->end() > limit_) split_after(region, limit_ - region->offset);
  // A hole never crosses the limit: what lies beyond it is lost, not free.
  auto same_side = [this](const Region* a, const Region* b) {
    return (a->offset < limit_) == (b->offset < limit_);
  };
  if (region->next != nullptr && region->next->is_free() && same_side(region, region->next)) {
    remove_hole(region->next);
    absorb_next(region);
  }
  if (region->prev != nullptr && region->prev->is_free() && same_side(region->prev, region)) {
    region = region->prev;
    remove_hole(region);
    absorb_next(region);
  }
  add_hole(region);
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
