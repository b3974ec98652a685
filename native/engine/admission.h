// Admission: an op begins beside those of other threads where there is room for all of them, and waits otherwise.
#pragma once

#include <chrono>
#include <cstddef>

#include "books.h"
#include "collectives.h"
#include "memory.h"
#include "planned.h"
#include "residency.h"
#include "turns.h"

namespace memfit {

class Admission {
 public:
  Admission(const Books& books, const Memory& memory, Turns& turns, Collectives& collectives, const Scratch& scratch,
            const Residency& residency, Planned& planned)
      : books_(books), memory_(memory), turns_(turns), collectives_(collectives), scratch_(scratch), residency_(residency), planned_(planned) {}

  // Wait until some other op, or a collective, has let go of its storages, or the session ends. False when there is none that could
  // let go, or it takes too long.
  bool wait_for_others(ThreadState& thread, Turns::For what = Turns::For::kRoom);
  // An op begins beside running ones if all of them could cut up what is free as they like. Otherwise it waits for their
  // end: halfway through, each with a part of what it needs, they would wait for each other. So it does with what collectives
  // are yet to make. `return_inputs` brings in what has left meanwhile.
  template <typename ReturnInputs>
  void take_turn(ThreadState& thread, size_t want, const ReturnInputs& return_inputs);

 private:
  bool others_prepare(const ThreadState& thread) const;
  bool is_contested(const ThreadState& thread, size_t want);
  bool fits_beside(size_t want) const;
  bool leaves_scratch(const ThreadState& thread, size_t want) const;

  const Books& books_;
  const Memory& memory_;
  Turns& turns_;
  Collectives& collectives_;
  const Scratch& scratch_;
  const Residency& residency_;
  Planned& planned_;
};

template <typename ReturnInputs>
void Admission::take_turn(ThreadState& thread, size_t want, const ReturnInputs& return_inputs) {
  if (is_contested(thread, want)) planned_.drop();
  Turns::Queued queued(turns_);
  const auto is_its_turn = [&] { return !turns_.others_run(thread) || (queued.is_alone() && fits_beside(want)); };
  const auto may_begin = [&] { return is_its_turn() && leaves_scratch(thread, want); };
  bool is_patient = true;
  while (is_patient && !may_begin()) {
    thread.stepped_aside = false;
    while (is_patient && !may_begin())
      is_patient = is_its_turn() ? collectives_.wait(thread, Collectives::For::kScratch) : wait_for_others(thread, Turns::For::kTurn);
    if (!thread.stepped_aside) continue;
    for (Block* block : thread.touched)
      if (!block->dead && !block->resident()) thread.missing.push_back(block);
    return_inputs();
  }
  turns_.promise(thread, want);
}

}  // namespace memfit
