// Residency: what makes way in the arena, and for what.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "costs.h"
#include "discarding.h"
#include "memory.h"
#include "moves.h"
#include "stats.h"
#include "turns.h"

namespace memfit {

class Residency {
 public:
  Residency(Memory& memory, Stats& stats, const Turns& turns, Moves& moves, Discarding& discarding, const Costs& costs)
      : memory_(memory), stats_(stats), turns_(turns), moves_(moves), discarding_(discarding), costs_(costs) {}

  // Nothing keeps it where it is: neither a user, nor an op that may read a small storage unseen.
  bool may_move(const Block& block) const;
  // Nothing but its one user does, who has not started yet.
  bool may_slide(const Block& block) const;
  // It is dropped, or goes to the tier, whatever takes less time. Raises TierFailure with nothing changed; false when it
  // cannot be taken away.
  bool evict(Block& block);
  // A place at an end of the smallest stretch that holds `bytes`, so that no stretch is cut in two: at its `high` end or
  // at the low one. nullptr when there is none.
  Region* place_at_edge(size_t bytes, Block* block, bool high);
  // The first and last region of the shortest run of holes and idle storages that is at least `bytes` long, with holes of at
  // least `free` bytes in all; nullptr: there is none.
  std::pair<Region*, Region*> smallest_stretch(size_t bytes, size_t free = 0) const;
  // Clear the cheapest window of idle storages and holes that is `bytes` long. False when there is none.
  bool make_room(size_t bytes) { return make_room(bytes, &Costs::of_leaving); }
  // Likewise where all of them can be made again: nothing is copied.
  bool make_room_by_drops(size_t bytes) { return make_room(bytes, &Costs::of_dropping); }
  // Empty the regions from `first` to `last`: largest first, into holes elsewhere if they fit, otherwise to the tier
  // (where that is wanted: `evicts`).
  bool clear(Region* first, Region* last, bool evicts = true);
  // What may move in the arena's ordinary regions, that first whose absence costs least for its size.
  std::vector<Block*> cheapest_first() const;
  bool relocate(Block& block, size_t avoid_from, size_t avoid_to);
  // Slide the blocks of an op that has not started yet to the low end of the arena, so that what it will allocate
  // finds one contiguous window above them.
  void consolidate(const std::vector<Block*>& own);
  // Move one block to the lowest address from `floor` on, clearing idle storages out of its way. Returns the end of
  // where it lies now.
  size_t slide_down(Block& mover, size_t floor);
  // The longest stretch of the arena without a storage that must stay put, or one that is long `enough`; `running`: while
  // an op runs.
  size_t widest_window(bool running = false, size_t enough = SIZE_MAX) const;
  bool has_window(size_t bytes, bool running = false) const { return widest_window(running, bytes) >= bytes; }

 private:
  using Cost = double (Costs::*)(const Block&) const;
  bool make_room(size_t bytes, Cost cost_of);
  bool costs_what_it_seems(Region* first, Region* last);

  Memory& memory_;
  Stats& stats_;
  const Turns& turns_;
  Moves& moves_;
  Discarding& discarding_;
  const Costs& costs_;
};

}  // namespace memfit
