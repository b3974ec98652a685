// Paging: an op whose working set is larger than the budget runs all the same: some of what it uses is mapped. Its bytes
// stay in the tier, and the op sees them there: in memory that the tier lies in, or through page frames, which
// take their room from the arena. Slower, and the same in every bit. (On a GPU ops see them over its link.)
//
// It hears of whatever happens to an op and to what it uses, so it has a method for each of these events.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../adoption.h"
#include "../books.h"
#include "../memory.h"
#include "../moves.h"
#include "../needs.h"
#include "../notices.h"
#include "../placing.h"
#include "../planned.h"
#include "../refusals.h"
#include "../residency.h"
#include "../stats.h"
#include "../thread_state.h"
#include "access.h"
#include "frame_room.h"
#include "page_frames.h"

namespace memfit {

struct OpInfo;

class Paging {
 public:
  enum class When { kNever, kInsteadOfFailing, kAlways };
  struct Settings {
    When when = When::kNever;
    PageFrames::Mechanism mechanism = PageFrames::Mechanism::kBest;
    WithinReach::By reach = WithinReach::By::kBest;
    Mortality mortality;  // for tests
  };

  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    Notices& notices;
    Moves& moves;
    Residency& residency;
    Shelf& shelf;
    Placing& placing;
    const Needs& needs;
    Refusals& refusals;
    Planned& planned;
  };
  explicit Paging(const Parts& parts)
      : on_(parts), frames_(parts.memory, parts.stats, parts.residency, parts.placing, parts.planned) {}

  void set(const Settings& settings) {
    when_ = settings.when;
    frames_.set(settings.mechanism, settings.reach, settings.mortality);
  }
  // Whether anything may be mapped in this session, whose limit is so many bytes,
  bool is_on_within(size_t limit) const;
  // and, if so, whether ops see it without a byte of the arena: in the tier itself, or beside it.
  bool is_direct() const { return !frames_.takes_room(); }
  // The block is mapped whenever an op uses it, and stays so from one to the next.
  // False: nothing is mapped in this session.
  bool keep(Block& block);

  // The op's inputs have been touched, and none has been brought in yet: those are mapped without which the others, and
  // what it is known to allocate, fit.
  void prepare(ThreadState& thread, const OpInfo& op);
  // Nothing is mapped, and nothing has to be where it fits.
  bool is_idle() const { return when_ != When::kAlways && !any_stays_ && mapped_bytes_ == 0 && !frames_.is_open(); }
  // What the op uses could be mapped, if that is not there and not in its tier's reach.
  bool may_map(const OpInfo& op) const;
  // The op runs in slices: an output of its that finds no room otherwise is mapped.
  void stand_by(ThreadState& thread, const OpInfo& op) const;
  // The op's inputs are in: rows of which its arguments tell come before it touches them, which would be a fault each.
  void bring_rows(const ThreadState& thread, const OpInfo& op, c10::ArrayRef<const c10::IValue> inputs) const;
  // What the op allocates now is better mapped: with it in the arena there may be no room for frames later.
  bool is_better_mapped(ThreadState& thread, size_t bytes) const;
  // The op's new storage is mapped, before it has anything in it. False, and the op may have failed, when it cannot be.
  bool map_new(ThreadState& thread, Block& block);
  // Something has found no room: frames keep no more than is enough for them. False when they have no more.
  bool make_room();
  // The op has done its work: what it spent on faults and copies was a wait, not its own time.
  void settle(ThreadState& thread);
  // No op uses the block any more: its bytes are in the tier.
  void leave(ThreadState& thread, Block& block);
  // Who asks for the bytes is no op, and may give them to a system call, for which no fault is served: they are to come in. (Of a
  // GPU, where their address is to stay what it is: who gets that expects memory of the GPU's.)
  void bring_out(Block& block, bool stays);
  // What the thread's op uses comes into the arena: it is given to system calls.
  void bring_out_all(ThreadState& thread);
  // Whatever no op uses now is mapped no longer, and the frames' room is given back if it can be.
  void take_down_idle();
  // An op is over.
  void op_ends(const ThreadState& thread);
  // What is mapped can be read in the tier: a child is to come,
  void before_fork();
  // and this is it.
  void become_inert();
  void count(Stats& figures) const { frames_.count(figures); }

 private:
  bool is_on() const { return on_.stats.budget_bytes != 0 && is_on_within(on_.memory.arena->ranges.limit()); }
  size_t frames_beside(const ThreadState& thread) const;
  size_t room() const;
  size_t seen_in_arena(const ThreadState& thread) const;
  void free_frames(ThreadState& thread);
  void map_planned(ThreadState& thread);
  std::vector<Block*> without_stretch(const ThreadState& thread) const;
  void map_or_go_without(ThreadState& thread, const std::vector<Block*>& chosen, size_t frames);
  std::vector<Block*> leave_arena(ThreadState& thread, const std::vector<Block*>& chosen);
  void map_those(ThreadState& thread, const std::vector<Block*>& chosen, size_t frames);
  bool map(Block& block, Access access, Extent extent, Extent source);
  bool take_down(Block& block);
  void tell_cost(const ThreadState& thread, size_t bytes);

  const Parts on_;
  When when_ = When::kNever;
  FrameRoom frames_;
  bool any_stays_ = false;
  uint64_t fault_ns_ = 0;  // until the last op ended
  size_t mapped_bytes_ = 0;  // since the last op that left nothing mapped
};

}  // namespace memfit
