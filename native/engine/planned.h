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
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "books.h"
#include "clearing.h"
#include "copies.h"
#include "course.h"
#include "forecast.h"
#include "last_resorts.h"
#include "memory.h"
#include "moves.h"
#include "plan.h"
#include "remakings.h"
#include "residency.h"
#include "shelf.h"
#include "stats.h"
#include "swaps.h"
#include "thread_state.h"

namespace memfit {

struct PlanTables {
  std::vector<uint64_t> identities;  // of the ops, those that run again too
  PlanTable takes;
  SwapTable swaps;
  RemakeTable remakes;
  std::optional<size_t> zone_offset;  // in the arena; none: wherever there is room
  bool at_once = true;     // an iteration begins now; otherwise the next is waited for
  bool is_another = false;  // than the iteration before
  uint64_t kind = 0;        // the iteration's signature: what was tried of such a plan's drops is known when it is back
};

struct TriedCalls;

class Planned final : public LastResorts {
 public:
  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    const Forecast& forecast;
    Moves& moves;
    Residency& residency;
    Discarding& discarding;
    Shelf& shelf;
    Clearing& clearing;
    Copies& copies;
    TriedCalls& tried;
  };
  explicit Planned(const Parts& parts)
      : books_(parts.books), memory_(parts.memory), stats_(parts.stats), forecast_(parts.forecast), moves_(parts.moves),
        residency_(parts.residency), discarding_(parts.discarding), shelf_(parts.shelf), clearing_(parts.clearing), copies_(parts.copies), tried_calls_(parts.tried) {}

  // From an iteration's end on; no op runs. False when the plan does not fit. `resident`: ids of the blocks that stay in
  // the arena throughout; what the plan swaps comes and goes.
  bool use(PlanTables plan, const std::vector<uint64_t>& resident);
  bool is_in_force() const { return memory_.arena->plan() != nullptr; }
  bool settle(Block& block) override { return copies_.settle(block); }
  bool drop() override;
  // No copies are under way and none begin.
  void end_swaps();

  // The place that the plan has for a storage that the thread is allocating, in an op or after it; nullptr: none. It may be
  // `over`, which is taken.
  Region* place(const ThreadState& thread, Block& block, Region* over = nullptr);
  // What was to be placed last is to be mapped.
  bool wants_mapped() const { return wants_mapped_; }
  // The thread's op uses the block where it waits, if it is away,
  bool maps(const ThreadState& thread, const Block& block) const { return is_planned(thread) && swaps_->maps(thread.planned_op, block); }
  // as it does with others.
  bool maps_any(const ThreadState& thread) const { return is_planned(thread) && swaps_->maps_any(thread.planned_op); }
  // What it allocates next, of so many bytes, is to be mapped.
  bool will_be_mapped(const ThreadState& thread, size_t bytes) const;
  // `order`, of outputs of so many bytes, becomes that in which the plan has the thread's op allocate them.
  void order_outputs(const ThreadState& thread, std::vector<size_t> bytes, std::vector<size_t>& order) const;
  // That has been made, without a place.
  void on_allocation_away(const ThreadState& thread, Block& block);
  // What is mapped is seen through frames that lie here; nullptr: the plan has none.
  Region* place_frames(const ThreadState& thread, void* owner);
  Region* place_late(Block& block) override;
  Region* lodge(Block& block, size_t bytes) override;
  // Clears the places that the plan gives to the thread's op. Returns the bytes of those that stay occupied; nullopt: it
  // gives none.
  std::optional<size_t> clear_places(const ThreadState& thread);
  // There is room for the bytes whose places stay occupied beside the other places, or for `want` bytes if it gives none.
  bool has_room(const ThreadState& thread, std::optional<size_t> unplaced, size_t want);
  // It is allocated.
  void on_allocation(const ThreadState& thread, Block& block);
  void on_release(Block& block) {
    if (swaps_) swaps_->on_release(block);
  }

  // An op begins, or has ended: what the plan wants copied then is.
  void before_op(ThreadState& thread, uint64_t identity);
  void after_op(ThreadState& thread);
  // Nothing moves for the op that is about to begin: it is the plan's next one, before which no copy is due.
  bool lets_pass(uint64_t identity) const;
  // What runs again before the op that is about to begin, in order; empty: nothing.
  struct Step {
    uint32_t op;
    Recipes recipes;
  };
  struct Remaking {
    uint64_t course = 0;
    uint32_t before = 0;
    std::vector<Step> steps;
  };
  Remaking remaking_due(uint64_t identity);
  // One of the steps begins, or has ended. False once the plan is not followed any more.
  bool step_begins(const Remaking& remaking, const Step& step, ThreadState& thread);
  void step_ends(const Remaking& remaking, const Step& step);
  // A value that a step has made belongs to the block, if any; it has come back there.
  Block* expected(const Remaking& remaking, const Value& value) const;
  void came_back(const Remaking& remaking, Block& from, Block& block);
  void failed(const Remaking& remaking, const Value& value, const std::string& why);
  void remaking_ends(const Remaking& remaking);
  // What was dropped for good for the first time, and is to be made again once, to be compared.
  struct Trials {
    uint64_t course = 0;
    std::vector<Remakings::Trial> of;
  };
  Trials trials_due(uint64_t identity);
  void trial_ends(const Trials& trials, const Remakings::Trial& trial, const Block& made);
  void trial_failed(const Trials& trials, const Remakings::Trial& trial, const std::string& why);
  // The program has done something else in this iteration.
  bool is_derailed() const { return stream_ && stream_->is_derailed(); }
  // An input of the thread's op does not give its place, as it is to.
  void refuse_handover(const ThreadState& thread) {
    if (remakings_ && thread.course == course_) remakings_->refuse_handover(thread.planned_op);
  }
  // What is known of the drops of the plan in force, or of the last one that was.
  Remakings::Tried tried() const { return remakings_ ? remakings_->tried() : tried_; }
  void iteration_ends();
  // A plan knows the ops of one thread. Whether another one has had an op as well since it is in force.
  bool is_shared() const { return is_shared_; }
  void note_thread(const ThreadState& thread);

  // Its work so far is added to the statistics.
  void count(Stats& stats) const;
  size_t held() const;  // bytes of the heap
  // A child of a fork has no plan.
  void abandon();

 private:
  void begin(PlanTables plan, std::unique_ptr<Swaps> swaps, size_t offset);
  bool is_planned(const ThreadState& thread) const { return swaps_ && thread.course == course_ && !thread.is_apart(); }
  bool is_followed(const Remaking& remaking) const { return remakings_ && remaking.course == course_; }
  bool is_awaited(const Trials& trials) const { return remakings_ && trials.course == course_; }
  void begin_op(ThreadState& thread, size_t op);
  void pass_by(size_t op);
  // Where ops are missing a storage may not be what the plan takes it for.
  bool may_drop() const { return !stream_->lacks_ops(); }
  void act_before(size_t op);
  void act_after(size_t op);
  bool make_way(Block& block);
  void carry_over();
  size_t last_take(int64_t ordinal) const;
  void start_out(uint32_t swap);
  void start_deferred();
  void finish_out(uint32_t swap);
  void start_in(uint32_t swap);
  void forget_swaps();
  void forget_recipes();

  Books& books_;
  Memory& memory_;
  Stats& stats_;
  const Forecast& forecast_;
  Moves& moves_;
  Residency& residency_;
  Discarding& discarding_;
  Shelf& shelf_;
  Clearing& clearing_;
  Copies& copies_;
  TriedCalls& tried_calls_;
  std::unique_ptr<Course> stream_;  // while there is a plan
  std::unique_ptr<Swaps> swaps_;    // likewise
  std::unique_ptr<Remakings> remakings_;  // while there is one that drops
  Remakings::Tried tried_;
  uint64_t known_as_ = 0;  // the plan, among those of which it is remembered what has come back; 0: it is not one
  std::unordered_map<uint64_t, std::vector<uint64_t>> came_back_;  // by plan (Remakings::came_back)
  const ThreadState* thread_ = nullptr;  // the first that had an op while the plan was in force,
  bool is_shared_ = false;               // and whether it was not the only one
  bool is_another_ = false;  // the plan is not that of the iteration before it
  uint64_t course_ = 0;  // grows when a plan's iteration begins, and when it is no longer followed
  std::vector<uint32_t> deferred_;  // swaps whose storages collectives have yet to let go of
  std::optional<uint32_t> number_;  // which of the plan's allocations the last one was
  bool wants_mapped_ = false;  // likewise
};

}  // namespace memfit
