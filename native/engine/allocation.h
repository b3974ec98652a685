// Allocation: a storage is made for an op, or outside of any, and dies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "blocks.h"
#include "discarding.h"
#include "forecast.h"
#include "in_place.h"
#include "needs.h"
#include "paging/paging.h"
#include "placing.h"
#include "recorder.h"
#include "room.h"
#include "stats.h"

namespace memfit {

class Allocation {
 public:
  // It is where most of what a session keeps books of begins and ends.
  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    Turns& turns;
    Forecast& forecast;
    Moves& moves;
    Discarding& discarding;
    Shelf& shelf;
    Placing& placing;
    Copies& copies;
    Planned& planned;
    Recorder& recorder;
    const Needs& needs;
    Refusals& refusals;
    Room& room;
    Blocks& blocks;
    InPlace& in_place;
    Paging& paging;
    Scratch& scratch;
  };
  explicit Allocation(const Parts& parts) : on_(parts) {}

  // `inside` an op of the thread's. nullptr when there is no room, and then the thread has a failure, or the session is
  // over.
  Block* allocate(ThreadState& thread, size_t bytes, bool inside, int64_t source);
  // One whose bytes are to be written to the tier, for an op of the thread's. Raises TierFailure.
  Block* allocate_away(ThreadState& thread, size_t bytes);
  // The storage is gone. It may be one that an earlier session has left behind.
  void release(ThreadState& thread, Block* block);

 private:
  bool find_place(ThreadState& thread, Block& block, bool inside);
  void note_request(ThreadState& thread, const Block& block) const;
  bool find_place_in_arena(ThreadState& thread, Block& block, bool inside);
  bool map(ThreadState& thread, Block& block);
  Region* place_for_op(ThreadState& thread, Block& block);
  Region* planned_place(ThreadState& thread, Block& block);
  Region* place_outside_ops(const ThreadState& thread, Block& block);
  void enter(ThreadState& thread, Block& block, bool inside, int64_t source);
  void note_beside(Block& block);
  void leave(ThreadState& thread, Block& block);

  const Parts on_;
};

}  // namespace memfit
