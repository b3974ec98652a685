// Copies: those under way in lanes beside the ops. A block with one is active, so that nothing moves it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lanes.h"
#include "memory.h"
#include "moves.h"
#include "stats.h"
#include "timeline.h"

namespace memfit {

class Copies {
 public:
  Copies(Memory& memory, Moves& moves, Stats& stats, Timeline& timeline)
      : memory_(memory), moves_(moves), stats_(stats), timeline_(timeline) {}

  // A plan has come into force, and one of its iterations has ended: on a device whose clock takes calls to read, copies
  // are timed in some of them.
  void plan_begins() { iterations_ = 0; }
  void iteration_ends();
  // An iteration has ended, with a plan or without one: the tier hears how long ops have waited for copies in it.
  void tell_tier();
  // To be called before anything depends on lanes: a thread cannot always be had. False if so.
  bool make_lanes();
  // Out of the block's place, or in to `region`, for the plan's `swap`.
  void begin(Block& block, Copy::Direction direction, Region* region, uint32_t swap);
  // Wait for the block's copy to end, and draw the conclusions. True if it has brought the block in.
  bool settle(Block& block);
  void settle_all();
  // The times of all that have been settled are in the statistics and in the timeline.
  void finish();
  void close();
  // A child of a fork has none.
  void abandon();

 private:
  bool are_timed() const;
  // The conclusions of a copy that has ended; whether it has succeeded.
  bool has_gone(Block& block, const Copy& copy);
  bool has_come(Block& block, const Copy& copy);
  void account();
  Lane& lane(Copy::Direction direction);

  Memory& memory_;
  Moves& moves_;
  Stats& stats_;
  Timeline& timeline_;
  uint64_t iterations_ = 0;  // under the plan in force
  uint64_t waited_ns_ = 0, copied_ns_ = 0;  // of which the tier has heard
  std::unique_ptr<Lane> lanes_[2];  // out, in
  std::vector<Block*> copying_;
  std::vector<std::shared_ptr<Copy>> settled_;  // waited for, but their times are not known yet
};

}  // namespace memfit
