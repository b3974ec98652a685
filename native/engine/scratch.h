// Scratch: what collectives make for themselves on threads of their own, and how much more of it there may be.
//
// Nobody is asked before they make it, and it stays where it is while they go on. So an op begins beside them only if
// there is room for both: halfway through, each with a part of what it needs, they would wait for each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace memfit {

class Scratch {
 public:
  // A collective: what it may make, and what all had made when it began.
  struct Share {
    uint64_t kind = 0;  // 0: it says nothing of others
    size_t expected = 0, made_before = 0;
  };

  // What an earlier session's collectives still have is not in this one's arena.
  void begin_session() { live_ = 0; }

  // All that has been made so far.
  size_t made() const { return made_; }
  void make(size_t bytes) { live_ += bytes, made_ += bytes; }
  void release(size_t bytes) { live_ -= std::min(live_, bytes); }
  size_t live() const { return live_; }

  // What a collective makes that is given so many bytes, as those seen before of that op and size say. The first may copy all of it.
  size_t expected(uint64_t op, size_t given_bytes) const;
  // One has begun, and goes on by itself.
  Share begin(uint64_t op, size_t given_bytes, size_t made_before);
  // It has completed.
  void complete(const Share& share);
  // Nobody waits for it, whatever it makes: it may never complete by itself.
  void give_up(Share& share);

  // What is yet to come.
  size_t to_come() const { return expected_ - std::min(expected_, live_); }

 private:
  static constexpr size_t kMostKnown = 1 << 12;
  static uint64_t kind_of(uint64_t op, size_t given_bytes) { return op ^ (given_bytes * 0x9e3779b97f4a7c15); }

  std::unordered_map<uint64_t, size_t> most_;  // that a kind makes: others, at work at the same time, may have made some of it
  size_t live_ = 0, made_ = 0, expected_ = 0;
};

}  // namespace memfit
