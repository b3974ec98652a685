// FrameRoom: a session's page frames, and the room that they take from its arena while anything is seen through them.
// (A tier that lies in memory needs none: an op sees it where it is.)
#pragma once

#include <cstddef>
#include <memory>

#include "../block.h"
#include "../memory.h"
#include "../placing.h"
#include "../planned.h"
#include "../residency.h"
#include "../thread_state.h"
#include "access.h"
#include "mapped.h"
#include "page_frames.h"

namespace memfit {

class FrameRoom {
 public:
  FrameRoom(Memory& memory, Residency& residency, Placing& placing, Planned& planned)
      : memory_(memory), residency_(residency), placing_(placing), planned_(planned) {
    ballast_.pinned = true;
  }

  void set(PageFrames::Mechanism mechanism, Mortality mortality) { mechanism_ = mechanism, mortality_ = mortality; }
  bool is_needed() const { return !memory_.tier->is_memory(); }
  // Of the session's limit: what is enough for one pass, and what keeps rows that are wanted again soon.
  size_t bytes() const;
  size_t bytes_for_rows() const;

  // Where the plan has them, or of so many bytes, elsewhere. False when there is no room for them beside a stretch `to_come`
  // bytes long. Raises TierFailure when the system refuses.
  bool open(ThreadState& thread, size_t bytes, size_t to_come = 0);
  bool is_open() const { return ballast_.region != nullptr; }
  size_t taken() const { return is_open() ? ballast_.region->size : 0; }
  // False when something is still seen through them.
  bool give_back();
  // The block's bytes, which are at `source` (null: it has none yet) and may be written to at `extent`.
  std::shared_ptr<Mapped> map(const Block& block, Access access, Extent extent, Extent source);

  // The frames are a parent's: this process leaves them alone.
  void become_inert();
  // nullptr: there were none so far.
  PageFrames* frames() const { return page_frames_.get(); }

 private:
  Memory& memory_;
  Residency& residency_;
  Placing& placing_;
  Planned& planned_;
  PageFrames::Mechanism mechanism_ = PageFrames::Mechanism::kBest;
  Mortality mortality_;
  std::shared_ptr<PageFrames> page_frames_;
  Block ballast_;  // its region is the frames' room in the arena
};

}  // namespace memfit
