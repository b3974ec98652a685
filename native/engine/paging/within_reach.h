// WithinReach: where a GPU's ops reach the bytes of what is mapped. No fault is served there.
//
// In the tier itself, if that is memory that they reach; otherwise in memory of the host's beside it. Of the latter some may
// come to the GPU for an op, where that was asked for: the arena gives up its room for it.
#pragma once

#include <cstddef>
#include <memory>

#include "../block.h"
#include "../memory.h"
#include "../stats.h"
#include "access.h"
#include "beside.h"

namespace memfit {

class WithinReach {
 public:
  // In the tier if they reach it and beside it otherwise; in the tier alone; or beside it alone, and some comes to the GPU.
  enum class By { kBest, kTier, kManaged };

  WithinReach(Memory& memory, Stats& stats) : memory_(memory), stats_(stats) {}

  void set(By by) { by_ = by; }
  // The session is on a GPU.
  bool is_on_gpu() const { return memory_.device->is_asynchronous(); }
  // Some of what is beside the tier comes to the GPU,
  bool has_reserve() const { return is_on_gpu() && by_ == By::kManaged; }
  // for which so many bytes of the arena, of `limit`, are to make room.
  size_t reserve_bytes(size_t limit) const;
  // They lie there, with nothing behind them: what comes may take as many as the driver has back.
  void reserve(const Region& room);
  bool is_in_use() const { return reserve_ && reserve_->taken != 0; }
  // The room is the arena's again, once what came is back with the host. (Nothing is in use.)
  void end_reserve();
  // Where the ops reach the block's bytes, which are at `source` so far (null: it has none) and belong at `extent`; null where
  // they do not. Raises TierFailure.
  std::shared_ptr<Mapped> map(const Block& block, Access access, Extent extent, Extent source);
  void count(Stats& figures) const;

 private:
  Memory& memory_;
  Stats& stats_;
  By by_ = By::kBest;
  std::shared_ptr<Reserve> reserve_;
};

}  // namespace memfit
