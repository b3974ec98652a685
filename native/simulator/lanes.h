// The two copy engines: first in, first out each way; each at a part of its speed while the other is busy too.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace memfit::swapping {

constexpr double kUnknown = std::numeric_limits<double>::infinity();

// Times are microseconds. Work is what a copy takes with its lane at full speed.
struct LaneCopy {
  double ready, work;
  double start = kUnknown, end = kUnknown;
};

class Lane {
 public:
  std::size_t push(double ready, double work) {
    copies_.push_back({ready, work});
    return copies_.size() - 1;
  }
  const LaneCopy& operator[](std::size_t copy) const { return copies_[copy]; }
  bool is_idle() const { return head_ == copies_.size(); }
  bool is_busy(double now) const { return !is_idle() && copies_[head_].ready <= now; }
  double next_ready() const { return is_idle() ? kUnknown : copies_[head_].ready; }
  double left() const { return is_idle() ? 0 : copies_[head_].work; }
  std::size_t done() const { return head_; }

  // The work of all that has not ended.
  double backlog() const {
    double sum = 0;
    for (std::size_t i = head_; i < copies_.size(); ++i) sum += copies_[i].work;
    return sum;
  }

  // Ends the copy at the head at `end`, or takes `done` off its work by `end`.
  void progress(double begin, double end, double done, bool ends) {
    LaneCopy& head = copies_[head_];
    head.start = std::min(head.start, begin);
    head.work = std::max(0.0, head.work - done);
    if (!ends) return;
    head.end = end;
    ++head_;
  }

  void clear() { copies_.clear(), head_ = 0; }

 private:
  std::vector<LaneCopy> copies_;
  std::size_t head_ = 0;
};

// Time only moves forward: copies are enqueued at or after the time last advanced to.
class Lanes {
 public:
  explicit Lanes(double both_factor) : both_factor_(both_factor) {}

  Lane out, in;

  void advance(double to) {
    while (now_ < to && !(out.is_idle() && in.is_idle())) step(to);
    now_ = std::max(now_, to);
  }

  // Runs the lanes on until `copy` of `lane` has ended and returns when that is.
  double wait(const Lane& lane, std::size_t copy) {
    while (lane.done() <= copy) step(kUnknown);
    return lane[copy].end;
  }

  void clear() { out.clear(), in.clear(), now_ = 0; }

 private:
  // To the next moment at which a copy begins or ends, at most to `limit`.
  void step(double limit) {
    const bool out_busy = out.is_busy(now_), in_busy = in.is_busy(now_);
    const double speed = out_busy && in_busy ? both_factor_ : 1.0;
    const double out_next = out_busy ? now_ + out.left() / speed : out.next_ready();
    const double in_next = in_busy ? now_ + in.left() / speed : in.next_ready();
    const double next = std::min(limit, std::min(out_next, in_next));
    if (out_busy) out.progress(now_, next, (next - now_) * speed, out_next <= next);
    if (in_busy) in.progress(now_, next, (next - now_) * speed, in_next <= next);
    now_ = next;
  }

  double both_factor_;
  double now_ = 0;
};

}  // namespace memfit::swapping
