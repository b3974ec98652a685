// Splitting: an op whose working set does not fit runs in slices. Here it is decided which, and what stays away for it.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "gate.h"
#include "memory.h"
#include "notices.h"
#include "planned.h"
#include "residency.h"
#include "split_call.h"
#include "stats.h"
#include "stress.h"
#include "thread_state.h"

namespace memfit {

class Splitting {
 public:
  struct Parts {
    Books& books;
    Memory& memory;
    Stats& stats;
    Notices& notices;
    Gate& gate;
    Residency& residency;
    Moves& moves;
    Planned& planned;
    const Stress& stress;
  };
  explicit Splitting(const Parts& parts) : on_(parts) {}

  // `tries_ahead`: what is large is tried while there is no limit, too, which takes time.
  // `is_forced`, for tests: whatever may be split is, though it fits.
  // `is_planned_for`: plans are made of what is recorded.
  void allow(bool is_allowed, bool tries_ahead, bool is_forced, bool is_planned_for) {
    is_allowed_ = is_allowed, tries_ahead_ = tries_ahead, is_forced_ = is_forced, is_planned_for_ = is_planned_for;
  }
  // For tests: whatever may be is, however small.
  bool is_pressed() const { return on_.stress == Stress::kSplit; }
  bool is_allowed() const { return is_allowed_ || is_pressed(); }
  // The op only hands on what it is given, which is too much to be brought in for that.
  bool defers(const ThreadState& thread, const OpInfo& op, Inputs inputs) const;
  // The thread's op, which has a rule, is about to have its inputs brought in: those that it will read in slices stay where
  // they are, or leave. Where it is recorded for a plan, and `may_map`, it runs whole: slices would need less, and other
  // storages. Raises TierFailure.
  void op_begins(ThreadState& thread, const OpInfo& op, Inputs inputs, bool may_map);

  // A call of the thread's op could run in slices: so much less would do for it.
  void note_need(ThreadState& thread, const OpInfo& op, const std::vector<Way>& ways, Inputs inputs, const Answer& answer) const;
  // The working set that the thread's op has then, if it allocates `workspace` bytes when it runs whole; 0: no less.
  size_t need_of(const ThreadState& thread, size_t workspace) const;

  // A call has run whose operands and outputs have so many bytes. Small ones are not worth a trial.
  bool is_worth_trying(size_t bytes);

 private:
  struct Operands;
  bool is_forced() const { return is_forced_ || is_pressed(); }
  std::optional<Operands> operands_of(Inputs inputs) const;
  bool may_be_too_large(const OpInfo& op, Inputs inputs) const;
  bool is_planned(const ThreadState& thread) const;
  bool waits_apart(const ThreadState& thread, const SplitCall& call, const Operands& operands) const;
  bool is_to_be_split(const ThreadState& thread, SplitCall& call, const OpInfo& op, Inputs inputs, const Answer& answer, const Operands& operands) const;
  size_t available(const std::vector<Block*>& own) const;
  size_t parts_bytes(const OpInfo& op, const Way& way, Inputs inputs, const Operands& operands) const;
  bool leave_lengths_to_stream(SplitCall& call, Inputs inputs) const;
  size_t whole_bytes(const SplitCall& call, const Operands& operands) const;
  bool choose(SplitCall& call, Inputs inputs, const Answer& answer, const Operands& operands, size_t room) const;
  void make_way(ThreadState& thread, const SplitCall& call, Inputs inputs, const Operands& operands, size_t room);

  const Parts on_;
  bool is_allowed_ = false, tries_ahead_ = false, is_forced_ = false, is_planned_for_ = false;
  size_t largest_ = 0;  // working set of all that could have been split
};

}  // namespace memfit
