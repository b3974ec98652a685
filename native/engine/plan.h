// Plan: an address for every allocation of an iteration, taken from a table op by op, in the order of the allocations.
//
// The zone is one span of the arena that only the plan hands out. Its table was made for a repeating period, of
// one iteration or a few (what outlives an iteration by a little can then lie elsewhere in each of them):
// between takes k-1 and k certain slots are due to be free, and slot k overlaps none that is due to be
// taken. So a take needs no search but among its op's own. A slot that is still taken when it is due is *late*; as long as there
// is one, an allocation is compared with the late ones, and goes elsewhere if it would overlap. Whatever the
// program does, no byte is given out twice. What the plan does not know may be a guest where no slot is taken, until a take
// wants the bytes.
// Its members are the table's columns, and what of the zone is taken; a take touches most of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "ranges.h"

namespace memfit {

struct PlanTable {
  struct Take {
    size_t bytes = 0;       // as the arena rounds them up
    uint32_t first_slot = 0;  // its instances take turns in `slots` slots; 0 slots: not planned
    uint32_t slots = 0;
    int64_t swap = kAllocation;  // or which swap it comes back from
    uint32_t again = 0;  // 1 more than the op that runs again and allocates it; 0: none does
    bool is_mapped = false;  // it has no slot, since its bytes are to stay in the tier
    bool is_temporary = false;  // it is freed before the next op begins
    uint32_t number = 0;  // of an allocation: which it is of the iteration's own, or of those of the op that runs again
    bool is_allocation_of(size_t size) const { return bytes == size && swap == kAllocation && again == 0; }
  };
  static constexpr int64_t kAllocation = -1;
  static constexpr uint32_t kFrames = INT32_MAX;  // `again` of what is no storage's, but for the page frames of an op
  struct Due {
    uint32_t take = 0;
    uint32_t periods_ago = 0;  // that the instance was allocated
  };
  std::vector<Take> takes;  // by ordinal in the period: allocations, and storages that come back
  std::vector<uint32_t> op_begin;  // by op of an iteration: its first take, counted from the iteration's; and for the end
  size_t iterations = 1;                // in a period, of as many allocations each
  std::vector<size_t> slot_offset;      // in the zone
  std::vector<uint32_t> due_begin;      // by ordinal, and one for the period's end: into `due`
  std::vector<Due> due;
  size_t bytes = 0;  // the zone's

  // Whether a slot has any of the zone's bytes [from, to).
  bool uses(size_t from, size_t to) const;
};

class Plan {
 public:
  static constexpr uint64_t kFirstPeriod = 1 << 20;  // what is alive when the plan begins came in earlier ones

  // `make_way(guest)` is to move it away, or to return false.
  Plan(PlanTable table, size_t zone_offset, bool at_once, std::function<bool(Region*)> make_way);

  // The region for the next take; nullptr when it is not planned, is another one or would overlap. If it lies where `over`
  // does, which is taken, that is given back. `outlives`: an allocation that is taken for one of the op's temporaries only if
  // no other has as many bytes.
  Region* take(size_t bytes, void* owner, int64_t swap = PlanTable::kAllocation, uint32_t again = 0, Region* over = nullptr, bool outlives = false);
  // The place of the op's page frames, as long as the plan has them; nullptr: it has none.
  Region* take_frames(void* owner);
  // Where the next take is to lie; nullptr when it is not planned.
  const Region* next() const;
  // Which of the allocations of the iteration (or of the op, if it runs again) the last one was; nullopt: none of them.
  std::optional<uint32_t> number() const { return number_; }
  // Whether the last one is to be mapped.
  bool is_mapped() const { return is_mapped_; }
  // Whether the next allocation of so many bytes that outlives the op is to be mapped.
  bool will_be_mapped(size_t bytes) const;
  // The order in which the op is to allocate what has so many bytes each and outlives it.
  std::vector<size_t> order_of(const std::vector<size_t>& bytes) const;
  // One of the plan's ops begins: what has not been taken of what was planned for those before it is passed over.
  void op_begins(size_t op);
  // Clears the places of the op's takes to come. Returns the bytes of the takes whose places stay occupied.
  size_t clear_for_op();
  // The next take is that of `swap`, and does not happen.
  void skip(int64_t swap);
  // The region that a take of the last iteration would have had; nullptr when any of its bytes are taken.
  Region* carry_over(size_t take, size_t bytes, void* owner);
  // Which of an iteration's takes an allocation is, by its ordinal among the allocations.
  size_t take_of_allocation(size_t ordinal) const;
  bool begun() const { return begun_; }
  // The region of a take that has been, in this iteration or the last; nullptr when any of its bytes are taken.
  Region* take_late(size_t take, size_t bytes, void* owner);
  // A place for what is not planned, as high as there is one; nullptr: none.
  Region* lodge(size_t bytes, void* owner);
  // What lies at `offset` of the arena stays there, as a guest.
  Region* seat(size_t offset, size_t bytes, void* owner);
  size_t widest_gap() const;
  // Without the places that the op's takes to come are planned to have, but for its temporaries'.
  size_t widest_gap_beside_op() const;
  void give_back(Region* region);
  bool contains(const Region* region) const { return region->offset >= zone_offset_ && region->end() <= zone_offset_ + table_.bytes; }
  void iteration_ends();

  // Slots and guests, in the order of addresses.
  std::vector<Region> all_taken() const;
  uint64_t planned() const { return planned_; }
  uint64_t mismatches() const { return mismatches_; }
  // Nothing has been asked for that was not expected since the iteration began.
  bool is_followed() const { return mismatches_ == mismatches_before_; }
  size_t used() const { return used_; }
  size_t held() const;  // bytes of the heap
  size_t taken_end() const;  // the highest end of a slot that is taken, in the arena
  size_t peak_end() const { return peak_end_; }
  void reset_peak() { peak_end_ = taken_end(); }

 private:
  // Whether a slot that is taken is so when it should be free; one that came back before its time is in nobody's way.
  enum class Late : uint8_t { kNot, kOutstays, kMayLeave };

  template <typename Predicate>
  std::optional<size_t> find_next(Predicate is_it) const;
  bool find_take(size_t bytes, int64_t swap, uint32_t again, bool outlives);
  size_t widest_between(const std::vector<Region>& regions) const;
  void pass_over(size_t until);
  void begin_iteration();
  void note_due(size_t ordinal);
  uint32_t slot_of(const PlanTable::Take& take, uint64_t period) const;
  bool clear(Region& region, const Region* over);
  std::vector<Region*> out_of_place();
  Region* mismatch();
  Region* give(uint32_t slot, void* owner);
  Region* give_late(uint32_t slot, void* owner);
  void mark_late(uint32_t slot, Late late);

  PlanTable table_;
  std::vector<Region> regions_;  // by slot; free while nobody owns them
  std::list<Region> guests_;
  size_t zone_offset_;
  std::function<bool(Region*)> make_way_;
  std::vector<Late> is_late_;    // by slot
  std::vector<uint32_t> late_;
  bool begun_;  // an iteration has begun since the plan was made
  size_t iteration_begin_ = 0, iteration_end_;  // ordinals
  size_t ordinal_ = 0, op_end_ = 0;  // the next take, and where those of the op end
  std::optional<uint32_t> number_;
  bool is_mapped_ = false;
  uint64_t period_ = kFirstPeriod;
  uint64_t planned_ = 0, mismatches_ = 0, mismatches_before_ = 0;
  size_t used_ = 0, peak_end_ = 0;
};

}  // namespace memfit
