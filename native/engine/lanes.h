// Lanes: copies between the arena and a tier that run beside the ops, in order, one at a time in each direction.
//
// A lane knows nothing of blocks and never takes the engine's mutex: it is handed addresses that stay valid until
// somebody has waited for the copy.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tier.h"

namespace memfit {

struct Copy {
  enum class Direction { kOut, kIn };
  using Clock = std::chrono::steady_clock;

  Direction direction;
  std::shared_ptr<Tier> tier;
  Slot slot;
  char* memory;
  size_t bytes;
  Region* region = nullptr;  // of `memory`, for a copy in: the block's once the copy has ended
  int64_t swap = -1;         // the plan's

  // Set by the lane; to be read once it is done.
  Clock::time_point began, ended;
  std::string error;  // empty: it succeeded
  bool done = false;  // under the lane's mutex
};

class Lane {
 public:
  Lane() : thread_([this] { run(); }) {}
  // Waits for everything that was pushed.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void push(std::shared_ptr<Copy> copy);
  void wait(const Copy& copy);
  bool is_done(const Copy& copy);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Copy>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace memfit
