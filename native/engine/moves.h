// Moves: one storage's bytes go from one address to another, out to the tier, and back.
#pragma once

#include <cstddef>

#include "books.h"
#include "memory.h"
#include "notices.h"
#include "ranges.h"
#include "recorder.h"
#include "stats.h"

namespace memfit {

class Moves {
 public:
  Moves(Books& books, Memory& memory, Stats& stats, Notices& notices, Recorder& recorder)
      : books_(books), memory_(memory), stats_(stats), notices_(notices), recorder_(recorder) {}

  // To `target`, which is taken for the block already, and given back when this is false: the storage cannot be moved, or there
  // is no memory. (In the midst of it, the bytes go to the tier.)
  bool move_to(Block& block, Region* target);
  // Within `ranges`, down to `target`: the span between it and the block, or the block's own size from it on, is free.
  // Returns the end of where the block lies now.
  size_t move_down(Ranges& ranges, Block& mover, size_t target);
  // Within `ranges`, down or up to `target`: what it would lie on is free, or its own. False, with nothing done, when it
  // cannot be moved, or that would take too long; or there is no memory, as above.
  bool slide_to(Ranges& ranges, Block& mover, size_t target);
  // Swap out. Raises TierFailure with nothing changed; false when the storage cannot be taken away.
  bool evict(Block& block);
  // The tier has its bytes: they are given up.
  void leave_arena(Block& block, c10::StorageImpl& storage);
  // Swap in to `region`, which is taken for the block. Raises TierFailure with nothing changed.
  void fetch(Block& block, Region* region, c10::StorageImpl& storage);
  // The block's bytes are in `region`.
  void come_in(Block& block, Region* region, c10::StorageImpl& storage);
  // Its copy in the tier is right again, or it counts as written to. Raises nothing.
  void mend_unseen_write(Block& block);
  // A forked child may still read it: the block's next copy goes elsewhere.
  void release_frozen_extent(Block& block);
  // The tier has the block's bytes, as of now.
  void went_out(const Block& block);
  void note_peaks();

 private:
  class Apart;
  bool carry(Block& mover, size_t target, c10::StorageImpl& storage);
  bool carry_in_pieces(Block& mover, size_t target, c10::StorageImpl& storage);
  void evict_parts(Block& mover, size_t target, size_t done, c10::StorageImpl& storage);
  bool written_unseen(const Block& block);
  void copy_out(Block& block);
  bool slide(const Block& mover, char* to);
  void move_by_tier(Block& mover, char* to, c10::StorageImpl& storage);
  void has_slid(Ranges& ranges, Block& mover, size_t target, c10::StorageImpl& storage);

  Books& books_;
  Memory& memory_;
  Stats& stats_;
  Notices& notices_;
  Recorder& recorder_;
};

}  // namespace memfit
