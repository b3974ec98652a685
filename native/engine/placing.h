// Placing: where a storage goes that no plan has a place for, on the shelf, or where there is room or can be.
#pragma once

#include <cstddef>

#include "compaction.h"
#include "last_resorts.h"
#include "memory.h"
#include "moves.h"
#include "residency.h"
#include "shelf.h"
#include "stats.h"

namespace memfit {

class Placing {
 public:
  Placing(Memory& memory, Stats& stats, Moves& moves, Residency& residency, Compaction& compaction, Shelf& shelf, LastResorts& resorts)
      : memory_(memory), stats_(stats), moves_(moves), residency_(residency), compaction_(compaction), shelf_(shelf), resorts_(resorts) {}

  // What is asked for beside the bytes themselves: the op that runs will want `more`, as far as is known or guessed; where
  // space is tight they go to the `high` end of a stretch, and to one that is longer than need be only if that leaves so much
  // `rest` of it (by default never: the op's OpWindow counts on it). Pages are taken for them only where as many as `spare`
  // has are left besides: what the op allocates is better mapped than in the way of what it wants next.
  struct Hint {
    size_t more = 0;
    bool high = false;
    size_t rest = SIZE_MAX;
    size_t spare = 0;

    bool is_known() const { return rest == SIZE_MAX; }  // what the op will want
  };

  // A place for `bytes`; nullptr when there is none. Raises TierFailure.
  Region* place(size_t bytes, Block* block, Hint hint);
  // Swap in. False when there is no room; raises TierFailure with nothing changed.
  bool bring_in(Block& block, size_t more);

 private:
  Region* place_beside_all(size_t bytes, Block* block, bool tight, const Hint& hint);
  bool has_pages() const;
  Region* place_beyond(size_t bytes, Block* block, const Hint& hint);
  Region* place_among_pages(size_t bytes, Block* block, const Hint& hint);

  Memory& memory_;
  Stats& stats_;
  Moves& moves_;
  Residency& residency_;
  Compaction& compaction_;
  Shelf& shelf_;
  LastResorts& resorts_;
};

}  // namespace memfit
