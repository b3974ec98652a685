// FrameRoom: a session's page frames, and the room that they take from its arena while anything is seen through them.
// (A tier that lies in memory needs none: an op sees it where it is. Nor does a GPU, but managed memory may have a reserve
// in their room.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "../block.h"
#include "../memory.h"
#include "../placing.h"
#include "../planned.h"
#include "../recorder.h"
#include "../residency.h"
#include "../stats.h"
#include "../thread_state.h"
#include "access.h"
#include "mapped.h"
#include "page_frames.h"
#include "within_reach.h"

namespace memfit {

class FrameRoom {
 public:
  static constexpr size_t kLeastFrames = 32 * kFaultPage;  // in bytes

  FrameRoom(Memory& memory, Stats& stats, Residency& residency, Placing& placing, Planned& planned)
      : memory_(memory), residency_(residency), placing_(placing), planned_(planned), reach_(memory, stats) {
    Recorder::pin(ballast_, nullptr);
  }

  void set(PageFrames::Mechanism mechanism, WithinReach::By reach, Mortality mortality) {
    mechanism_ = mechanism, mortality_ = mortality;
    reach_.set(reach);
  }
  bool is_on_gpu() const { return reach_.is_on_gpu(); }
  // Ops do not reach the bytes themselves: faults are served.
  bool is_needed() const { return !is_on_gpu() && !memory_.tier->is_memory(); }
  // They, or a reserve.
  bool takes_room() const { return is_needed() || reach_.has_reserve(); }
  // Of the session's limit: what is enough for one pass (or the reserve; 0: neither), and what keeps rows that are wanted
  // again soon.
  size_t bytes() const;
  size_t bytes_for_rows() const;
  // What several threads need that touch several operands at once.
  size_t fewest_bytes() const { return std::min(bytes(), kLeastFrames); }

  // Where the plan has them, or of so many bytes, elsewhere. False when there is no room for them beside a stretch `to_come`
  // bytes long. Raises TierFailure when the system refuses.
  bool open(ThreadState& thread, size_t bytes, size_t to_come = 0);
  // Of so many bytes, or half as many, and so on, down to what is enough for one pass.
  bool open_most(ThreadState& thread, size_t bytes, size_t to_come = 0);
  bool is_open() const { return ballast_.region != nullptr; }
  size_t taken() const { return is_open() ? ballast_.region->size : 0; }
  // False when something is still seen through them, or in the reserve.
  bool give_back();
  // They keep half of what they have, or what is enough for one pass. False when they have no more, or cannot have less.
  bool shrink();
  // The block's bytes, which are at `source` (null: it has none yet) and may be written to at `extent`; null where ops reach
  // them nowhere. Raises TierFailure.
  std::shared_ptr<Mapped> map(const Block& block, Access access, Extent extent, Extent source);

  // The frames are a parent's: this process leaves them alone.
  void become_inert();
  // nullptr: there were none so far.
  PageFrames* frames() const { return page_frames_.get(); }
  void count(Stats& figures) const;

 private:
  Region* place_beside(size_t bytes, size_t to_come);

  Memory& memory_;
  Residency& residency_;
  Placing& placing_;
  Planned& planned_;
  PageFrames::Mechanism mechanism_ = PageFrames::Mechanism::kBest;
  Mortality mortality_;
  std::shared_ptr<PageFrames> page_frames_;
  WithinReach reach_;  // where none are needed
  Block ballast_;  // its region is the frames' room in the arena
};

}  // namespace memfit
