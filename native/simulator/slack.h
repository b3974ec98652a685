// What each op leaves of the budget, as a tree over ops: a span changes, and what it has least is found, in O(log n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace memfit::swapping {

// Bytes. A node's `least_` counts what was added to it and below it; what was added above is in the nodes above.
class Slack {
 public:
  explicit Slack(const std::vector<std::int64_t>& bytes) : values_(bytes) {
    while (leaves_ < values_.size()) leaves_ *= 2, ++levels_;
    least_.assign(2 * leaves_, kNoOp);
    added_.assign(leaves_, 0);
    std::copy(values_.begin(), values_.end(), least_.begin() + static_cast<std::ptrdiff_t>(leaves_));
    for (std::size_t node = leaves_ - 1; node > 0; --node) renew(node);
  }

  // Adds to the ops of [begin, end).
  void add(std::int64_t begin, std::int64_t end, std::int64_t bytes) {
    if (begin >= end) return;
    is_known_ = false;
    std::size_t first = begin + leaves_, last = end + leaves_;
    for (; first < last; first /= 2, last /= 2) {
      if (first & 1) add_to(first++, bytes);
      if (last & 1) add_to(--last, bytes);
    }
    for (std::size_t node = (begin + leaves_) / 2; node > 0; node /= 2) renew(node);
    for (std::size_t node = (end - 1 + leaves_) / 2; node > 0; node /= 2) renew(node);
  }

  // The least of the ops of [begin, end); no op has kNoOp.
  std::int64_t least(std::int64_t begin, std::int64_t end) const {
    return least(1, 0, static_cast<std::int64_t>(leaves_), begin, end);
  }
  std::int64_t least() const { return least_[1]; }

  // The first or the last op of [begin, end) with less than `bytes`, or -1.
  std::int64_t first_below(std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
    return find_below(1, 0, static_cast<std::int64_t>(leaves_), {begin, end, true}, bytes);
  }
  std::int64_t last_below(std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
    return find_below(1, 0, static_cast<std::int64_t>(leaves_), {begin, end, false}, bytes);
  }

  // The first op that has the least of all.
  std::int64_t first_least() const {
    std::size_t node = 1;
    while (node < leaves_) node = 2 * node + (least_[2 * node + 1] < least_[2 * node]);
    return static_cast<std::int64_t>(node - leaves_);
  }

  std::int64_t at(std::int64_t op) const {
    std::size_t node = op + leaves_;
    std::int64_t bytes = least_[node];
    while ((node /= 2) > 0) bytes += added_[node];
    return bytes;
  }

  // All ops' in a row: O(n) after a change.
  const std::vector<std::int64_t>& all() {
    if (is_known_) return values_;
    for (std::size_t node = 1; node < leaves_; ++node) {
      if (added_[node] == 0) continue;
      add_to(2 * node, added_[node]);
      add_to(2 * node + 1, added_[node]);
      added_[node] = 0;
    }
    std::copy_n(least_.begin() + static_cast<std::ptrdiff_t>(leaves_), values_.size(), values_.begin());
    is_known_ = true;
    return values_;
  }

  std::int64_t levels() const { return levels_; }

  static constexpr std::int64_t kNoOp = std::numeric_limits<std::int64_t>::max() / 2;

 private:
  void add_to(std::size_t node, std::int64_t bytes) {
    least_[node] += bytes;
    if (node < leaves_) added_[node] += bytes;
  }

  void renew(std::size_t node) { least_[node] = std::min(least_[2 * node], least_[2 * node + 1]) + added_[node]; }

  // The leaves [from, to) are those of `node`.
  std::int64_t least(std::size_t node, std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end) const {
    if (begin >= to || end <= from) return kNoOp;
    if (begin <= from && to <= end) return least_[node];
    const std::int64_t middle = (from + to) / 2;
    return std::min(least(2 * node, from, middle, begin, end), least(2 * node + 1, middle, to, begin, end)) +
           added_[node];
  }

  struct Sought {
    std::int64_t begin, end;
    bool first;
  };

  std::int64_t find_below(std::size_t node, std::int64_t from, std::int64_t to, const Sought& sought,
                          std::int64_t bytes) const {
    if (sought.begin >= to || sought.end <= from || least_[node] >= bytes) return -1;
    if (node >= leaves_) return from;
    const std::int64_t middle = (from + to) / 2, below = bytes - added_[node];
    const auto left = [&] { return find_below(2 * node, from, middle, sought, below); };
    const auto right = [&] { return find_below(2 * node + 1, middle, to, sought, below); };
    const std::int64_t found = sought.first ? left() : right();
    if (found >= 0) return found;
    return sought.first ? right() : left();
  }

  std::size_t leaves_ = 1;
  std::int64_t levels_ = 1;
  std::vector<std::int64_t> least_, added_;
  std::vector<std::int64_t> values_;  // by op, as of when `is_known_` last held
  bool is_known_ = true;
};

}  // namespace memfit::swapping
