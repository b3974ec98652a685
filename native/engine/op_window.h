// OpWindow: how long a free stretch an op's own allocations need.
//
// Their peak sum is not enough: scratch that comes and goes leaves holes between what stays, and nothing an op
// holds can be moved while it runs. So its allocations are noted and replayed by the rule that places them
// (Residency::place_at_edge): the smallest free span that holds one; large ones at its low end, small ones at its
// high end, so that short-lived small scratch does not come to lie between large tensors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "hash.h"

namespace memfit {

class OpWindow {
 public:
  static bool goes_high(size_t size, size_t largest) { return 2 * size <= largest; }

  void clear() {
    events_.clear();
    live_ = peak_ = 0;
    hash_ = 0;
  }

  // Returns a ticket for give_back.
  size_t take(size_t size, bool high) {
    events_.push_back({size, kNone, high});
    hash_ = mix(hash_, 2 * size + (high ? 1 : 0));
    live_ += size;
    peak_ = std::max(peak_, live_);
    return events_.size() - 1;
  }

  void give_back(size_t ticket) {
    events_.push_back({0, ticket, false});
    hash_ = mix(hash_, ~ticket);
    live_ -= events_[ticket].size;
  }

  size_t live() const { return live_; }
  size_t peak() const { return peak_; }
  // Of what was taken and given back, in order.
  uint64_t hash() const { return hash_; }

  // The shortest window in which the replay succeeds, to 1 %; at least the peak sum.
  size_t length(size_t alignment) const {
    if (events_.size() > kLongest) return 2 * peak_;
    size_t length = peak_;
    while (!fits(length)) length = (length + length / 100 + alignment) / alignment * alignment;
    return length;
  }

 private:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  static constexpr size_t kLongest = 2048;  // events; replaying more would cost more than the op

  struct Event {
    size_t size;
    size_t frees;  // the ticket given back, or kNone
    bool high;
  };
  struct Span {
    size_t begin;
    size_t end;
  };

  bool fits(size_t length) const {
    std::vector<Span> holes{{0, length}};
    std::vector<size_t> places(events_.size());
    for (size_t i = 0; i < events_.size(); ++i) {
      const Event& event = events_[i];
      if (event.frees != kNone) {
        put_back(holes, {places[event.frees], places[event.frees] + events_[event.frees].size});
      } else if (!take_from(holes, event, places[i])) {
        return false;
      }
    }
    return true;
  }

  static bool take_from(std::vector<Span>& holes, const Event& event, size_t& place) {
    auto best = holes.end();
    for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
      size_t size = hole->end - hole->begin;
      if (size >= event.size && (best == holes.end() || size < best->end - best->begin)) best = hole;
    }
    if (best == holes.end()) return false;
    place = event.high ? best->end - event.size : best->begin;
    if (event.high)
      best->end -= event.size;
    else
      best->begin += event.size;
    if (best->begin == best->end) holes.erase(best);
    return true;
  }

  static void put_back(std::vector<Span>& holes, Span span) {
    auto next = std::find_if(holes.begin(), holes.end(), [&](const Span& hole) { return hole.begin >= span.end; });
    if (next != holes.end() && next->begin == span.end) {
      span.end = next->end;
      next = holes.erase(next);
    }
    if (next != holes.begin() && std::prev(next)->end == span.begin)
      std::prev(next)->end = span.end;
    else
      holes.insert(next, span);
  }

  std::vector<Event> events_;
  size_t live_ = 0;
  size_t peak_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace memfit
