// The shelf: where small storages live, and large ones that must stay where they are. It has a method for each occasion to
// come there, to make room, and to leave.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "books.h"
#include "compaction.h"
#include "memory.h"
#include "moves.h"
#include "residency.h"
#include "turns.h"

namespace memfit {

class Shelf {
 public:
  Shelf(const Books& books, Memory& memory, const Stats& stats, const Turns& turns, Moves& moves, Residency& residency, Compaction& compaction)
      : books_(books), memory_(memory), stats_(stats), turns_(turns), moves_(moves), residency_(residency), compaction_(compaction) {}

  // A session has begun, and libraries have their workspaces. Nothing counts as small before.
  void begin();
  // The limit is another one: what counts as small is too.
  void sort_by_size();
  bool is_small(size_t bytes) const;
  // Not small, but of a size that is where the limit is larger: one that stays where it is for a while is better there.
  bool is_short(size_t bytes) const;

  // The lowest place on the shelf. nullptr when it would have to grow and what lies above it cannot make way: or only by
  // leaving the arena, where that is not wanted (`evicts`), or, as long as all that is alive fits, by taking the longest hole
  // from the op that runs, which will want `more` bytes.
  Region* place(Block& block, bool evicts, size_t more = 0);
  // It must not move from now on: it had better not lie in the way. Its one user is the caller.
  void keep(Block& block);
  // What was a plan's or the shelf's is an ordinary region from now on.
  void made_ordinary(Region* region) {
    tell_owner(region);
    scattered_ |= owner_of(region)->small;
  }
  // Those that have, for want of room on the shelf or by a plan that was dropped, come back,
  void gather();
  // or leave, where the shelf could not grow since the op's own storages lie above it.
  void evict_scattered();
  // The last resort of an op that has not started, or of a plan: idle small storages leave too, and its `own` close ranks.
  // False when that gives back nothing.
  bool clear(const std::vector<Block*>& own);
  // What is on it and may move, of an op's `own` too, moves to its low end, and the rest of it is given back, but for `spare`
  // bytes. False when that is nothing.
  bool close_ranks(const std::vector<Block*>& own, size_t spare = 0);
  // A hole of so many bytes lies between what must stay on it. Small ones make way for that, where there is room for them
  // elsewhere, until they are gathered again. False when there is none. No op runs.
  bool make_hole(size_t bytes);
  // A plan's zone begins where the shelf ends: what recurs is to lie lowest on it.
  void make_way_for(const std::unordered_set<uint64_t>& stays);
  // Free bytes beyond those that had better be kept free are given back.
  void trim();

 private:
  size_t step() const;
  size_t end_of_step(size_t end) const;
  size_t slack() const;
  bool grow_to(size_t needed, bool evicts, const Block* coming = nullptr);
  bool may_grow_to(size_t end) const;
  bool spares_longest_hole(size_t end, size_t more) const;
  bool push_up(size_t end, const Block* coming);
  bool clear_up_to(size_t end, bool evicts);
  void leave(Block& block);
  Block* fixed_at_end() const;
  void take_in();
  bool makes_way(Block& block);
  void grow_over(Block& block);
  void close_hole_below(Block& block);

  const Books& books_;
  Memory& memory_;
  const Stats& stats_;
  const Turns& turns_;
  Moves& moves_;
  Residency& residency_;
  Compaction& compaction_;
  bool has_begun_ = false;
  bool scattered_ = false;  // small storages lie elsewhere than on the shelf
};

}  // namespace memfit
