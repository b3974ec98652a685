// Adoption: ordinary memory, made before the session, becomes a block's.
#pragma once

#include <cstddef>

#include "blocks.h"
#include "compaction.h"
#include "ordinary.h"
#include "placing.h"
#include "recorder.h"
#include "stats.h"

namespace memfit {

class Adoption {
 public:
  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    Moves& moves;
    const Compaction& compaction;
    Placing& placing;
    Recorder& recorder;
    Blocks& blocks;
    OrdinaryMemory& ordinary;
  };
  explicit Adoption(const Parts& parts)
      : books_(parts.books), memory_(parts.memory), stats_(parts.stats), moves_(parts.moves), compaction_(parts.compaction), placing_(parts.placing),
        recorder_(parts.recorder), blocks_(parts.blocks), ordinary_(parts.ordinary) {}

  // Ordinary memory of torch's own allocator, with no numpy array on it (that makes a storage unresizable).
  bool is_adoptable(const c10::StorageImpl& storage) const;
  // It moves into the arena, beside `more`. False when there is no room; raises TierFailure.
  bool into_arena(const c10::Storage& storage, size_t more);
  // It moves into the arena if there is room now, otherwise to the tier. Raises TierFailure.
  void somewhere(const c10::Storage& storage);

 private:
  void into_tier(const c10::Storage& storage);
  bool find_place(Block& block, size_t more);
  void adopted(Block& block, const c10::Storage& storage);
  void put_behind_ordinary(Block& block, c10::StorageImpl& impl);

  Books& books_;
  Memory& memory_;
  Stats& stats_;
  Moves& moves_;
  const Compaction& compaction_;
  Placing& placing_;
  Recorder& recorder_;
  Blocks& blocks_;
  OrdinaryMemory& ordinary_;
};

}  // namespace memfit
