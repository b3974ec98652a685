// Lanes: copies between the arena and a tier that run beside the ops, in order, one at a time in each direction.
//
// A lane knows nothing of blocks and never takes the engine's mutex: it is handed addresses that stay valid until
// somebody has waited for the copy.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tier.h"

namespace memfit {

// One copy, under way or ended. Plain data: what was asked for, and what has become of it.
struct Copy {
  enum class Direction { kOut, kIn };

  Direction direction;
  std::shared_ptr<Tier> tier;
  Extent extent;
  char* memory;
  size_t bytes;
  Region* region = nullptr;  // of `memory`, for a copy in: the block's once the copy has ended
  int64_t swap = -1;         // the plan's
  bool is_timed = true;      // its times are to be known

  // Set by the lane, to be read once it has been waited for; the times (ns), of one that is timed, once the lane knows them.
  int64_t began = 0, ended = 0, waited_from = 0, waited_until = 0;
  std::string error;  // empty: it succeeded
  bool done = false;  // under the lane's mutex
  bool counts = false;  // it has succeeded: its bytes are among those moved
  std::shared_ptr<void> marks;  // the lane's own
  bool takes_print = false;
  uint64_t print = 0;  // of the bytes copied
  int64_t waited_by = -1;  // the op, for the timeline
};

class Lane {
 public:
  virtual ~Lane() = default;  // waits for everything that was pushed
  virtual void push(std::shared_ptr<Copy> copy) = 0;
  // Whatever is done on the device from here on is done after the copy.
  virtual void wait(Copy& copy) = 0;
  // Whether the times of a copy that was waited for are known by now.
  virtual bool knows_times(Copy& copy) = 0;
};

// Copies made by a thread of its own. Who waits for one, waits.
class ThreadLane final : public Lane {
 public:
  using Pushed = std::function<void(Copy&)>;
  using Perform = std::function<void(Copy&, const std::function<void()>&)>;

  // `pushed` is called with every copy when it is pushed; `perform` calls its second argument, which copies, in the
  // lane's thread.
  explicit ThreadLane(Pushed pushed = {}, Perform perform = {})
      : pushed_(std::move(pushed)), perform_(std::move(perform)), thread_([this] { run(); }) {}
  ~ThreadLane() override;
  ThreadLane(const ThreadLane&) = delete;
  ThreadLane& operator=(const ThreadLane&) = delete;

  void push(std::shared_ptr<Copy> copy) override;
  void wait(Copy& copy) override;
  bool knows_times(Copy&) override { return true; }

 private:
  void run();
  void perform(Copy& copy);

  Pushed pushed_;
  Perform perform_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Copy>> queue_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace memfit
