// Planned mode: a plan's zone is cleared at an iteration's end and hands out addresses from then on.
//
// Below it lie, packed, the storages that recur (parameters, optimizer states); what the plan does not know goes
// wherever else there is room. When there is none the plan is dropped: its zone becomes ordinary space.
//
// It hears of whatever happens to storages and ops, so it has a method for each of these events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "books.h"
#include "clearing.h"
#include "copies.h"
#include "forecast.h"
#include "last_resorts.h"
#include "memory.h"
#include "moves.h"
#include "plan.h"
#include "residency.h"
#include "shelf.h"
#include "stats.h"
#include "swaps.h"
#include "thread_state.h"

namespace memfit {

class Planned final : public LastResorts {
 public:
  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    const Forecast& forecast;
    Moves& moves;
    Residency& residency;
    Shelf& shelf;
    Clearing& clearing;
    Copies& copies;
  };
  explicit Planned(const Parts& parts)
      : books_(parts.books), memory_(parts.memory), stats_(parts.stats), forecast_(parts.forecast), moves_(parts.moves),
        residency_(parts.residency), shelf_(parts.shelf), clearing_(parts.clearing), copies_(parts.copies) {}

  // From an iteration's end on; no op runs. False when the plan does not fit. `resident`: ids of the blocks that stay in
  // the arena throughout; what the plan swaps comes and goes.
  bool use(PlanTable table, SwapTable swaps, const std::vector<uint64_t>& resident, bool at_boundary);
  bool is_in_force() const { return memory_.arena->plan() != nullptr; }
  bool settle(Block& block) override { return copies_.settle(block); }
  bool drop() override;
  // No copies are under way and none begin.
  void end_swaps();

  // The place that the plan has for a storage that is being allocated; nullptr: none.
  Region* place(Block& block);
  Region* place_late(Block& block) override;
  void on_allocation(Block& block) {
    if (swaps_) swaps_->on_allocation(block);
  }
  void on_release(Block& block) {
    if (swaps_) swaps_->on_release(block);
  }

  // An op begins, or has ended: what the plan wants copied then is.
  void before_op(ThreadState& thread, uint64_t name_hash);
  void after_op(const ThreadState& thread);
  void iteration_ends();
  // A plan knows the ops of one thread. Whether another one has had an op as well since it is in force.
  bool is_shared(const ThreadState& thread);

  // Its work so far is added to the statistics.
  void count(Stats& stats) const;
  size_t held() const;  // bytes of the heap
  // A child of a fork has no plan.
  void abandon();

 private:
  void begin(PlanTable table, std::unique_ptr<Swaps> swaps, size_t offset, bool at_boundary);
  void carry_over();
  void start_out(uint32_t swap);
  void finish_out(uint32_t swap);
  void start_in(uint32_t swap);
  void forget_swaps();

  Books& books_;
  Memory& memory_;
  Stats& stats_;
  const Forecast& forecast_;
  Moves& moves_;
  Residency& residency_;
  Shelf& shelf_;
  Clearing& clearing_;
  Copies& copies_;
  std::unique_ptr<Swaps> swaps_;  // while there is a plan that swaps
  const ThreadState* thread_ = nullptr;  // the first that had an op while the plan was in force,
  bool is_shared_ = false;               // and whether it was not the only one
  uint64_t course_ = 0;  // grows when a plan's iteration begins, and when it is no longer followed
};

}  // namespace memfit
