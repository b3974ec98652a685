// Timeline: what ops and copies really did, for comparison with what was predicted. Nothing is noted unless it is on.
#pragma once

#include <cstdint>
#include <vector>

#include "lanes.h"

namespace memfit {

class Timeline {
 public:
  // One row a copy: swap, direction (0 out, 1 in), bytes, began_ns, ended_ns, waited_from_ns, waited_until_ns, op.
  static constexpr size_t kCopyColumns = 8;

  void start() { *this = Timeline(), on_ = true; }
  void stop() { on_ = false; }
  bool on() const { return on_; }
  void op_begins(size_t resident_bytes) {
    if (on_) op_begins_.insert(op_begins_.end(), {ns(Copy::Clock::now()), static_cast<int64_t>(resident_bytes)});
  }
  void iteration_ends() {
    if (on_) iteration_ends_.insert(iteration_ends_.end(), {static_cast<int64_t>(op_begins_.size() / 2), ns(Copy::Clock::now())});
  }
  void copied(const Copy& copy, Copy::Clock::time_point waited_from, Copy::Clock::time_point waited_until) {
    if (!on_) return;
    copies_.insert(copies_.end(), {copy.swap, copy.direction == Copy::Direction::kIn, static_cast<int64_t>(copy.bytes),
                                   ns(copy.began), ns(copy.ended), ns(waited_from), ns(waited_until),
                                   static_cast<int64_t>(op_begins_.size() / 2) - 1});
  }

  const std::vector<int64_t>& copies() const { return copies_; }
  // One row an op: when it began (ns), the arena's bytes in use then.
  const std::vector<int64_t>& op_begins() const { return op_begins_; }
  // One row an end: the ops begun so far, when it was (ns).
  const std::vector<int64_t>& iteration_ends_rows() const { return iteration_ends_; }

 private:
  static int64_t ns(Copy::Clock::time_point t) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
  }

  bool on_ = false;
  std::vector<int64_t> copies_, op_begins_, iteration_ends_;
};

}  // namespace memfit
