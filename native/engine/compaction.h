// Compaction: what may move slides together in the arena, so that the holes between become one, and nothing leaves.
//
// As long as all that is alive fits, no storage has to be evicted: who wants room asks here first.
#pragma once

#include <cstddef>
#include <unordered_set>
#include <utility>
#include <vector>

#include "books.h"
#include "memory.h"
#include "moves.h"
#include "residency.h"

namespace memfit {

class Compaction {
 public:
  Compaction(const Books& books, Memory& memory, Moves& moves, const Residency& residency)
      : books_(books), memory_(memory), moves_(moves), residency_(residency) {}

  // All storages that are alive have room in the arena at once, beside so many bytes more. `coming`: one of them, which
  // these bytes are for.
  bool all_fit(size_t bytes, const Block* coming = nullptr) const { return all_fit_within(memory_.arena->ranges.limit() - memory_.arena->punched_bytes(), bytes, coming); }
  bool all_fit_within(size_t limit, size_t bytes = 0, const Block* coming = nullptr) const;
  // Of this session's storages, one or more are not in the arena.
  bool any_is_away() const { return away_bytes(nullptr) != 0; }
  // There is a hole of so many bytes, for which as few as can be have slid down; of an op's `own` storages too, which has
  // not started. False when no stretch between what stays has so many bytes free.
  bool make_hole(size_t bytes, const std::vector<Block*>& own = {});
  // As Residency::place_at_edge, and nothing leaves: where the smallest stretch has too few free bytes, in a longer one that
  // has, if `rest` bytes of it are left.
  Region* place_at_edge(size_t bytes, Block* block, bool high, size_t rest);
  // [from, to) is free; what may move has slid up for it. False when something there stays, or too little is free.
  bool open(size_t from, size_t to, const std::vector<Block*>& own = {});
  // Everything slides down as far as it can.
  void slide_all_down();
  // The most bytes that are free in one stretch between storages that stay while an op runs,
  size_t widest_free() const;
  // and the longest hole that can be made before it starts, its `own` storages moving too.
  size_t widest_hole(const std::vector<Block*>& own) const;

 private:
  using Own = std::unordered_set<const Block*>;
  struct Stretch {
    Region *first = nullptr, *last = nullptr;
    size_t free = 0;

    void add(Region* region);
  };

  size_t away_bytes(const Block* except) const;
  bool may_slide(const Block& block, const Own& own) const;
  template <typename Stays>
  size_t widest_between(const Stays& stays) const;
  std::vector<Stretch> stretches() const;
  static Stretch edge_of(std::pair<Region*, Region*> stretch, size_t bytes, bool high);
  Stretch cheapest_window(size_t bytes, const Own& own) const;
  void slide(const Stretch& stretch, bool up);
  Region* hole_of(size_t bytes, size_t at) const;

  const Books& books_;
  Memory& memory_;
  Moves& moves_;
  const Residency& residency_;
};

}  // namespace memfit
