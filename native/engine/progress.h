// Progress: iterations end, one after the other, and what of them is recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "copies.h"
#include "forecast.h"
#include "ghosts.h"
#include "iterations.h"
#include "planned.h"
#include "recorder.h"
#include "timeline.h"

namespace memfit {

class Progress {
 public:
  struct Parts {
    const Books& books;
    Memory& memory;
    Stats& stats;
    Forecast& forecast;
    Planned& planned;
    Copies& copies;
    Recorder& recorder;
    Timeline& timeline;
    const Ghosts& ghosts;
  };
  explicit Progress(const Parts& parts) : on_(parts) {}

  // An op begins: an iteration may have ended before it.
  void op_begins();
  // Whether none ends before the next one.
  bool is_amid() const { return !iterations_.is_over(on_.stats.ops + 1); }
  // It is recorded, if a recording is under way.
  void record(ThreadState& thread);
  // What ops outside a backward pass are a part of from now on.
  void set_phase(Phase phase) { phase_ = phase; }
  // It has ended, and has needed so many bytes (a failed one: nothing).
  void op_ends(const ThreadState& thread, size_t need, size_t split_need);
  // The callback that is due, with no lock held, since an iteration has ended by its period.
  std::function<void()> due() { return iterations_.due(std::exchange(period_found_, false)); }

  // An optimizer has stepped.
  void on_step();
  // A forward pass of a program that does not train has ended. It may train later: a period is still looked for.
  void on_pass() { iteration_ends(); }
  // `at_boundary`: an iteration begins now.
  void start_recording(bool at_boundary = false);
  void start_timeline();
  Timeline stop_timeline();
  void restart_clock();
  Iterations& iterations() { return iterations_; }
  const Iterations& iterations() const { return iterations_; }

 private:
  void iteration_ends();
  void give_up_if_due();
  void find_period_if_due();

  const Parts on_;
  Iterations iterations_;
  Phase phase_ = Phase::kForward;  // a session's own: an optimizer's step that failed in an earlier one is over
  bool gave_up_ = false;       // the recording became too long; the next iteration's end begins another
  bool period_found_ = false;  // just now
};

}  // namespace memfit
