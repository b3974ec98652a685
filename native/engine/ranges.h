// Ranges: which parts of [0, limit) are taken. Best fit with coalescing; regions in address order.
//
// It knows nothing of memory: the arena uses it for addresses, the tiers for offsets in a file or a slab.
// Both walk its regions, so it has a question for each thing they ask of one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

namespace memfit {

constexpr size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
// To a power of two, without a division.
constexpr size_t align_up(size_t n, size_t alignment) { return (n + alignment - 1) & ~(alignment - 1); }

class Ranges;
struct Region;
struct BySize {
  bool operator()(const Region* a, const Region* b) const;
};
using Holes = std::set<Region*, BySize>;

// A maximal free span, or one owner's span. `owner == nullptr` means free.
struct Region {
  size_t offset;
  size_t size;
  void* owner;
  Region* prev;
  Region* next;
  Holes::iterator place;  // among the holes, while it is one
  const Ranges* home = nullptr;  // a plan's have none

  bool is_free() const { return owner == nullptr; }
  size_t end() const { return offset + size; }
};

inline bool BySize::operator()(const Region* a, const Region* b) const {
  return a->size != b->size ? a->size < b->size : a->offset < b->offset;
}

class Ranges {
 public:
  // `alignment`: a power of two.
  Ranges(size_t limit, size_t alignment);
  ~Ranges();
  Ranges(const Ranges&) = delete;
  Ranges& operator=(const Ranges&) = delete;

  // The smallest free region that holds `size` bytes, the lowest of several; nullptr when none does.
  Region* hole_for(size_t size) const;
  // At its low or its high end; nullptr when there is none.
  Region* take(size_t size, void* owner, bool high = false);
  // Take [offset, offset + size) of the free region `hole`.
  Region* take_at(Region* hole, size_t offset, size_t size, void* owner);
  // As `take_at`, for space that is not used yet: it does not count to the footprint.
  Region* reserve_at(Region* hole, size_t offset, size_t size, void* owner);
  // As `take`, but of all that fit the lowest, which keeps the footprint low.
  Region* take_lowest(size_t size, void* owner);
  // As `take`, but nowhere in [avoid_from, avoid_to).
  Region* take_outside(size_t size, void* owner, size_t avoid_from, size_t avoid_to);
  // The free region that holds `offset`; nullptr when it is taken.
  Region* hole_at(size_t offset) const;
  // Raises std::logic_error if it is none of these ranges'.
  void give_back(Region* region);
  // Give back all but the region's last `size` bytes. Returns what is still taken.
  Region* keep_last(Region* region, size_t size);
  // Parts of a taken region, in the order of addresses, become regions of their own, each told with `made`; the rest is
  // given back. Wherever the limit is: none of it is free meanwhile.
  template <typename Made>
  void divide(Region* region, const std::vector<Region>& parts, const Made& made);
  // A taken region reaches up to `end` from now on: space that is not used yet. Raises std::logic_error where that is not
  // free, with nothing changed.
  void lengthen(Region* region, size_t end);
  // Whether a taken region has room at `target`: free, or its own,
  bool may_slide(const Region& region, size_t target) const;
  // and it moves there. Raises std::logic_error where it may not, with nothing changed.
  Region* slide(Region* region, size_t target);
  // Raises std::logic_error if these books contradict themselves.
  void check() const;
  // The free region that ends at the limit, and the largest one; nullptr when there is none.
  const Region* last_hole() const;
  const Region* largest_hole() const { return holes_.empty() ? nullptr : *holes_.rbegin(); }
  // Allow everything up to `limit`, at most the one it was made with.
  void grow(size_t limit);
  // Forbid everything from `limit` on. Free space there disappears; taken regions there stay until given back.
  void shrink(size_t limit);

  Region* first() const { return head_; }
  size_t limit() const { return limit_; }
  size_t most() const { return size_; }  // what the limit can be raised to
  size_t alignment() const { return alignment_; }
  size_t used() const { return used_; }
  size_t free_bytes() const { return free_bytes_; }
  size_t largest_free() const { return holes_.empty() ? 0 : (*holes_.rbegin())->size; }
  size_t footprint() const { return footprint_; }
  void reset_footprint(std::initializer_list<const Region*> except = {});

 private:
  bool is_hole(const Region* region) const { return region->is_free() && region->size != 0 && region->offset < limit_; }
  bool may_join(const Region* neighbour, const Region* region) const;
  void add_hole(Region* region);
  void remove_hole(Region* region);
  void change_hole(Region* region, size_t offset, size_t size);
  Region* insert_after(Region* before, size_t offset, size_t size);
  void unlink(Region* region);
  Region* split_after(Region* region, size_t size);
  void absorb_next(Region* region);
  void find_holes();
  Region* cut_off(Region* region, size_t size);

  size_t size_;  // the limit it was made with
  size_t limit_;
  size_t alignment_;
  size_t used_ = 0;
  size_t free_bytes_ = 0;
  size_t footprint_ = 0;
  Region* head_;
  Holes holes_;
};

template <typename Made>
void Ranges::divide(Region* region, const std::vector<Region>& parts, const Made& made) {
  void* const owner = region->owner;
  for (const Region& part : parts) {
    if (part.offset > region->offset) give_back(std::exchange(region, cut_off(region, part.offset - region->offset)));
    Region* const rest = part.end() < region->end() ? cut_off(region, part.size) : nullptr;
    region->owner = part.owner;
    footprint_ = std::max(footprint_, part.owner == owner ? 0 : part.end());
    made(region);
    if (rest == nullptr) return;
    region = rest;
  }
  give_back(region);
}

}  // namespace memfit
