// When to stop: per round the first task that makes all later ones needless. Time is told, and ends nothing.
#pragma once

#include <atomic>
#include <chrono>

namespace memfit::packing {

class Clock {
 public:
  double seconds() const { return std::chrono::duration<double>(Now::now() - start_).count(); }

 private:
  using Now = std::chrono::steady_clock;
  Now::time_point start_ = Now::now();
};

// What a search polls. Tasks before the first one that met the goal run on to their end, so that which plan wins does
// not depend on the threads.
class Stop {
 public:
  Stop(const std::atomic<int>& first_done, int task) : first_done_(first_done), task_(task) {}

  bool operator()() const { return first_done_.load(std::memory_order_relaxed) < task_; }

 private:
  const std::atomic<int>& first_done_;
  int task_;
};

}  // namespace memfit::packing
