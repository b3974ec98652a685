// Growth: a limit that gives way for one op rather than end a run, where the user has asked for that.
//
// A share of a training iteration's peak says nothing of the evaluation that follows an epoch later. The arena gets as
// many bytes more as the op needs, and is back within the budget as soon as what lies beyond it can move. (What lies there
// because a hole is punched for it, within the budget, comes back in the same way.)
#pragma once

#include <cstddef>
#include <vector>

#include "books.h"
#include "compaction.h"
#include "memory.h"
#include "notices.h"
#include "residency.h"
#include "shelf.h"
#include "stats.h"
#include "thread_state.h"
#include "turns.h"

namespace memfit {

class Growth {
 public:
  Growth(const Books& books, Memory& memory, Stats& stats, Notices& notices, const Turns& turns, Residency& residency, Compaction& compaction, Shelf& shelf)
      : books_(books), memory_(memory), stats_(stats), notices_(notices), turns_(turns), residency_(residency),
        compaction_(compaction), shelf_(shelf) {}

  void allow(bool allowed) { is_allowed_ = allowed; }
  bool is_beyond_limit() const { return memory_.arena->ranges.limit() > memory_.arena->limit(); }
  // Room for `request` bytes more at the end of the arena, for the thread's op. False when that is not wanted, or there
  // is no more memory.
  bool grow(size_t request, const ThreadState& thread);
  // An op begins: what lies beyond the limit moves or leaves, as far as it can.
  void return_to_limit();

 private:
  size_t end_of_hole(size_t begin, size_t bytes) const;
  bool comes_back(Block& block);
  size_t bring_back(const std::vector<Block*>& beyond);

  const Books& books_;
  Memory& memory_;
  Stats& stats_;
  Notices& notices_;
  const Turns& turns_;
  Residency& residency_;
  Compaction& compaction_;
  Shelf& shelf_;
  bool is_allowed_ = false;
};

}  // namespace memfit
