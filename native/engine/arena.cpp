#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace memfit {

namespace {
constexpr size_t kPage = 4096;

void return_pages(char* base, size_t from, size_t to) {
  from = round_up(from, kPage);
  to = to / kPage * kPage;
  if (to > from) madvise(base + from, to - from, MADV_DONTNEED);
}
}  // namespace

Arena::Arena(size_t reserve_bytes, size_t limit_bytes)
    : ranges(limit_bytes, kAlignment), reserved_(round_up(reserve_bytes, kPage)) {
  void* base = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
}

Arena::~Arena() { munmap(base_, reserved_); }

void Arena::shrink(size_t limit_bytes) {
  ranges.shrink(limit_bytes);
  for (Region* r = ranges.first(); r != nullptr; r = r->next)
    if (r->is_free()) return_pages(base_, r->offset, r->end());
}

void Arena::set_plan(PlanTable table, size_t offset, bool at_once, void* owner) {
  zone_ = ranges.reserve_at(ranges.hole_at(offset), offset, table.bytes, owner);
  plan_ = std::make_unique<Plan>(std::move(table), offset, at_once);
}

void Arena::give_back(Region* region) {
  if (plan_ && plan_->contains(region))
    plan_->give_back(region);
  else
    ranges.give_back(region);
}

size_t Arena::footprint() const {
  size_t end = plan_ ? plan_->taken_end() : 0;
  for (const Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next)
    if (!r->is_free() && !(plan_ && r == zone_)) end = std::max(end, r->end());
  return end;
}

size_t Arena::peak_footprint() const {
  return plan_ ? std::max(ranges.footprint(), plan_->peak_end()) : ranges.footprint();
}

void Arena::reset_footprint() {
  ranges.reset_footprint(plan_ ? zone_ : nullptr);
  if (plan_) plan_->reset_peak();
}

void Arena::drop_pages(const Region* region) { return_pages(base_, region->offset, region->end()); }

}  // namespace memfit
