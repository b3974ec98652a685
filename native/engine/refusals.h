// Refusals: what is said of an op that cannot have its bytes, and the smallest budget that has room for it.
#pragma once

#include <cstddef>
#include <string>

#include "books.h"
#include "failure.h"
#include "memory.h"
#include "residency.h"
#include "stats.h"
#include "thread_state.h"

namespace memfit {

class Refusals {
 public:
  Refusals(const Books& books, const Memory& memory, const Stats& stats, const Residency& residency)
      : books_(books), memory_(memory), stats_(stats), residency_(residency) {}

  // The peak that the budget is told as a share of; 0: none is known.
  void set_peak(size_t bytes) { peak_ = bytes; }
  // Tell in `failure` that the thread's op cannot have `request` bytes more (`is_input`: they are among its inputs), why,
  // and what would do.
  void refuse(const ThreadState& thread, Failure& failure, size_t request, bool is_input) const;

 private:
  size_t smallest_budget(const ThreadState& thread, size_t request, bool is_input) const;
  std::string share_of_peak(size_t bytes) const;
  size_t immovable_bytes() const;
  std::string describe_immovable() const;

  const Books& books_;
  const Memory& memory_;
  const Stats& stats_;
  const Residency& residency_;
  size_t peak_ = 0;
};

}  // namespace memfit
