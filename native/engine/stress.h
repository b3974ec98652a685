// Stress, for tests: whatever may move does, before every op, and garbage is left where it was. A raw pointer that
// somebody has kept, or a write that nobody has seen, is then a wrong number at once and not one day. Or whatever may run in
// slices is tried, however small, and runs in slices from then on (splitting.h).
#pragma once

#include "books.h"
#include "discarding.h"
#include "memory.h"
#include "moves.h"
#include "residency.h"

namespace memfit {

enum class Stress { kNone, kEvict, kMove, kRecompute, kSplit };

class Pressing {
 public:
  Pressing(const Books& books, Memory& memory, Moves& moves, Residency& residency, Discarding& discarding)
      : books_(books), memory_(memory), moves_(moves), residency_(residency), discarding_(discarding) {}

  // No op runs but the one that is about to start.
  void press_out_all(Stress stress);
  // What can be made again is to be. Before anything is made again for the op that is about to start.
  void discard_all(Stress stress);

 private:
  void press_out(Block& block, Stress stress);
  void leave_garbage(char* where, size_t offset, size_t bytes) const;

  const Books& books_;
  Memory& memory_;
  Moves& moves_;
  Residency& residency_;
  Discarding& discarding_;
};

}  // namespace memfit
