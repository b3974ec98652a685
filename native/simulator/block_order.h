// The blocks that are there, in the order in which they leave.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "simulator/faults.h"

namespace memfit::swapping {

class BlockOrder {
 public:
  BlockOrder(Leaves leaves, std::int64_t blocks)
      : leaves_(leaves), end_(blocks), before_(blocks + 1, blocks), after_(blocks + 1, blocks), key_(blocks, kAway) {}

  bool contains(std::int64_t block) const { return key_[block].second != kAway.second; }

  // `next_op` is the op that uses the block again; the current one, if it is not done with it.
  void touch(std::int64_t block, std::int64_t next_op) {
    const bool is_new = !contains(block);
    if (!is_new && leaves_ == Leaves::kUsedLast) by_use_.erase({key_[block], block});
    if (!is_new && leaves_ == Leaves::kLeastRecent) unlink(block);
    if (is_new || leaves_ == Leaves::kLeastRecent) link(block);
    key_[block] = {next_op, ++clock_};
    if (leaves_ == Leaves::kUsedLast) by_use_.insert({key_[block], block});
  }

  void remove(std::int64_t block) {
    if (leaves_ == Leaves::kUsedLast) by_use_.erase({key_[block], block});
    unlink(block);
    key_[block] = kAway;
  }

  // The next to leave of those that `may_leave`; -1 if there is none.
  template <typename May>
  std::int64_t first(std::int64_t op, May may_leave) const {
    if (leaves_ == Leaves::kNewest) return newest(may_leave);
    return leaves_ == Leaves::kUsedLast ? used_last(op, may_leave) : oldest(may_leave);
  }

 private:
  static constexpr std::pair<std::int64_t, std::int64_t> kAway{-1, -1};
  static constexpr int kInUse = 8;  // that many of the last ones may be in use at once

  template <typename May>
  std::int64_t newest(May may_leave) const {
    std::int64_t found = -1;
    int seen = 0;
    for (std::int64_t b = before_[end_]; b != end_ && seen < kInUse; b = before_[b])
      if (may_leave(b)) found = b, ++seen;
    return seen == kInUse ? found : oldest(may_leave);
  }

  template <typename May>
  std::int64_t oldest(May may_leave) const {
    for (std::int64_t b = after_[end_]; b != end_; b = after_[b])
      if (may_leave(b)) return b;
    return -1;
  }

  // Before all others one that was not used when it was expected to be: it lay beside the rows that were drawn.
  template <typename May>
  std::int64_t used_last(std::int64_t op, May may_leave) const {
    for (auto at = by_use_.begin(); at != by_use_.end() && at->first.first < op; ++at)
      if (may_leave(at->second)) return at->second;
    std::int64_t found = -1;
    int seen = 0;
    for (auto at = by_use_.rbegin(); at != by_use_.rend() && seen < kInUse; ++at) {
      if (!may_leave(at->second)) continue;
      found = at->second;
      if (at->first.first > op) break;
      ++seen;
    }
    return found;
  }

  void link(std::int64_t block) {
    before_[block] = before_[end_], after_[block] = end_;
    after_[before_[end_]] = block, before_[end_] = block;
  }
  void unlink(std::int64_t block) {
    after_[before_[block]] = after_[block], before_[after_[block]] = before_[block];
  }

  Leaves leaves_;
  std::int64_t end_, clock_ = 0;
  std::vector<std::int64_t> before_, after_;  // a ring through `end_`
  std::vector<std::pair<std::int64_t, std::int64_t>> key_;
  std::set<std::pair<std::pair<std::int64_t, std::int64_t>, std::int64_t>> by_use_;
};

}  // namespace memfit::swapping
