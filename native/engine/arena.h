// Arena: the one contiguous reservation that holds everything resident.
#pragma once

#include <cstddef>
#include <memory>

#include "block.h"
#include "plan.h"
#include "ranges.h"

namespace memfit {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;  // what torch's own CPU allocator gives: kernels take the same path

  // Reserves address space only; pages become real when they are touched. Raises std::bad_alloc.
  Arena(size_t reserve_bytes, size_t limit_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* base() const { return base_; }
  bool contains(const void* p) const { return p >= base_ && p < base_ + reserved_; }
  // Lower the limit and return the untouched pages beyond it to the system.
  void shrink(size_t limit_bytes);
  // Return a region's pages to the system.
  void drop_pages(const Region* region);

  // Let a plan hand out [offset, offset + bytes), which must be free, in the name of `owner`; at once, or from
  // the next iteration on.
  void set_plan(PlanTable table, size_t offset, bool at_once, void* owner);
  // Make the plan's taken slots ordinary regions again, and the rest of its zone free. Calls `moved(region)`
  // with each of them: the owner's region is another one now.
  template <typename Moved>
  void drop_plan(const Moved& moved);
  Plan* plan() const { return plan_.get(); }

  void give_back(Region* region);
  size_t used() const { return ranges.used() - (plan_ ? zone_->size - plan_->used() : 0); }
  // The highest address in use: now, and ever since the last reset.
  size_t footprint() const;
  size_t peak_footprint() const;
  void reset_footprint();

  Ranges ranges;

 private:
  Region* zone_ = nullptr;  // the plan's
  std::unique_ptr<Plan> plan_;
  size_t reserved_;
  char* base_;
};

template <typename Moved>
void Arena::drop_plan(const Moved& moved) {
  if (!plan_) return;
  std::unique_ptr<Plan> plan = std::move(plan_);
  ranges.give_back(zone_);
  for (const Region& slot : plan->regions())
    if (!slot.is_free()) moved(ranges.take_at(ranges.hole_at(slot.offset), slot.offset, slot.size, slot.owner));
}

inline char* Block::address() const { return arena->base() + region->offset; }
inline Block* owner_of(const Region* region) { return static_cast<Block*>(region->owner); }

}  // namespace memfit
