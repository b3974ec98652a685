// Timeline: what ops and copies really did, for comparison with what was predicted. Nothing is noted unless it is on.
#pragma once

#include <cstdint>
#include <vector>

#include "device.h"
#include "held.h"
#include "lanes.h"

namespace memfit {

class Timeline {
 public:
  // The columns of each table, in order: Python reads them by these names. A copy's `op` is the one that waited for it.
  static constexpr const char* kCopies[] = {"swap",     "is_in",          "bytes",           "began_ns",
                                            "ended_ns", "waited_from_ns", "waited_until_ns", "op"};
  static constexpr const char* kOpBegins[] = {"begins_ns", "resident_bytes"};
  static constexpr const char* kIterationEnds[] = {"ops_begun", "ended_ns"};

  void start() { *this = Timeline(), on_ = true; }
  void stop() { on_ = false; }
  bool on() const { return on_; }
  // `stamp`: the device's ticket for now.
  void op_begins(int64_t stamp, size_t resident_bytes) {
    op_begins_.insert(op_begins_.end(), {stamp, static_cast<int64_t>(resident_bytes)});
  }
  void iteration_ends(int64_t stamp) {
    iteration_ends_.insert(iteration_ends_.end(), {static_cast<int64_t>(op_begins_.size() / 2), stamp});
  }
  void copied(const Copy& copy) {
    if (!on_) return;
    copies_.insert(copies_.end(), {copy.swap, copy.direction == Copy::Direction::kIn, static_cast<int64_t>(copy.bytes),
                                   copy.began, copy.ended, copy.waited_from, copy.waited_until, copy.waited_by});
  }
  int64_t op() const { return static_cast<int64_t>(op_begins_.size() / 2) - 1; }
  // Turn tickets into times (ns).
  void resolve(Device& device) {
    for (size_t i = 0; i < op_begins_.size(); i += 2) op_begins_[i] = device.time_of(op_begins_[i]);
    for (size_t i = 1; i < iteration_ends_.size(); i += 2) iteration_ends_[i] = device.time_of(iteration_ends_[i]);
  }

  size_t held() const { return held_bytes(copies_, op_begins_, iteration_ends_); }  // bytes of the heap
  const std::vector<int64_t>& copies() const { return copies_; }
  const std::vector<int64_t>& op_begins() const { return op_begins_; }
  const std::vector<int64_t>& iteration_ends_rows() const { return iteration_ends_; }

 private:
  bool on_ = false;
  std::vector<int64_t> copies_, op_begins_, iteration_ends_;
};

}  // namespace memfit
