// When to stop: a deadline, and per round the first task that makes all later ones needless.
#pragma once

#include <atomic>
#include <chrono>

namespace memfit::packing {

class Clock {
 public:
  explicit Clock(double limit_seconds) : start_(Now::now()), limit_(limit_seconds) {}

  double seconds() const { return std::chrono::duration<double>(Now::now() - start_).count(); }
  bool is_over() const {
    if (seconds() < limit_) return false;
    was_seen_over_ = true;
    return true;
  }

  // Whether anybody was told that time is up: if not, the clock has had no part in the result.
  bool was_seen_over() const { return was_seen_over_; }

 private:
  using Now = std::chrono::steady_clock;
  Now::time_point start_;
  double limit_;
  mutable std::atomic<bool> was_seen_over_{false};
};

// The clock that a search polls. Tasks before the first one that met the goal run on to their end, so that which plan
// wins does not depend on the threads.
class Stop {
 public:
  Stop(const Clock& clock, const std::atomic<int>& first_done, int task)
      : clock_(clock), first_done_(first_done), task_(task) {}

  bool operator()() const { return first_done_.load(std::memory_order_relaxed) < task_ || clock_.is_over(); }

 private:
  const Clock& clock_;
  const std::atomic<int>& first_done_;
  int task_;
};

}  // namespace memfit::packing
