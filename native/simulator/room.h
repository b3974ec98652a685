// The room that each op has for what comes back early, in blocks of ops under a tree: a long stretch is looked at and
// taken in O(log n), a short one as in a plain column.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace memfit::swapping {

// Bytes. A node's `least_` counts what was added to it and below it; what was added above is in the nodes above.
class Room {
 public:
  // Gives each op `bytes` of room, and none less than none.
  void reset(const std::vector<std::int64_t>& bytes) {
    whole_.resize(bytes.size());
    const auto at_least_none = [](std::int64_t b) { return std::max<std::int64_t>(0, b); };
    std::transform(bytes.begin(), bytes.end(), whole_.begin(), at_least_none);
    values_ = whole_;
    for (leaves_ = 1; leaves_ * kBlock < count(); leaves_ *= 2) {
    }
    added_.assign(2 * leaves_, 0);
    least_.assign(2 * leaves_, std::numeric_limits<std::int64_t>::max() / 2);
    for (std::int64_t leaf = 0; leaf * kBlock < count(); ++leaf) renew_leaf(leaf + leaves_);
    for (std::int64_t node = leaves_ - 1; node > 0; --node) renew(node);
  }

  std::int64_t at(std::int64_t op) const { return values_[op] + above(op); }

  // Takes `bytes` at the ops of [begin, end).
  void take(std::int64_t begin, std::int64_t end, std::int64_t bytes) {
    if (begin < end) add(1, 0, leaves_, begin, end, -bytes);
  }

  // Gives back all that was taken at `op`. The tree learns of it when the block is over.
  void restore(std::int64_t op) {
    values_[op] = whole_[op] - above(op);
    if ((op + 1) % kBlock != 0 && op + 1 != count()) return;
    std::int64_t node = op / kBlock + leaves_;
    renew_leaf(node);
    while ((node /= 2) > 0) renew(node);
  }

  // The last op of [begin, end) with less room than `bytes`, or -1.
  std::int64_t last_below(std::int64_t begin, std::int64_t end, std::int64_t bytes) const {
    return begin < end ? last(1, 0, leaves_, begin, end, bytes) : -1;
  }

 private:
  static constexpr std::int64_t kBlock = 64;

  std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }

  std::int64_t above(std::int64_t op) const {
    std::int64_t bytes = 0;
    for (std::int64_t node = op / kBlock + leaves_; node > 0; node /= 2) bytes += added_[node];
    return bytes;
  }

  void renew_leaf(std::int64_t node) {
    const auto begin = values_.begin() + (node - leaves_) * kBlock;
    const auto end = values_.begin() + std::min((node - leaves_ + 1) * kBlock, count());
    least_[node] = *std::min_element(begin, end) + added_[node];
  }

  void renew(std::int64_t node) { least_[node] = std::min(least_[2 * node], least_[2 * node + 1]) + added_[node]; }

  // The blocks [from, to) are those of `node`.
  void add(std::int64_t node, std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end,
           std::int64_t bytes) {
    if (begin >= to * kBlock || end <= from * kBlock) return;
    if (begin <= from * kBlock && to * kBlock <= end) {
      added_[node] += bytes;
      least_[node] += bytes;
    } else if (node >= leaves_) {
      const std::int64_t last = std::min(end, to * kBlock);
      for (std::int64_t op = std::max(begin, from * kBlock); op < last; ++op) values_[op] += bytes;
      renew_leaf(node);
    } else {
      const std::int64_t middle = (from + to) / 2;
      add(2 * node, from, middle, begin, end, bytes);
      add(2 * node + 1, middle, to, begin, end, bytes);
      renew(node);
    }
  }

  std::int64_t last(std::int64_t node, std::int64_t from, std::int64_t to, std::int64_t begin, std::int64_t end,
                    std::int64_t bytes) const {
    if (begin >= to * kBlock || end <= from * kBlock || least_[node] >= bytes) return -1;
    bytes -= added_[node];
    if (node >= leaves_) {
      const std::int64_t first = std::max(begin, from * kBlock);
      std::int64_t op = std::min(end, to * kBlock) - 1;
      while (op >= first && values_[op] >= bytes) --op;
      return op >= first ? op : -1;
    }
    const std::int64_t middle = (from + to) / 2, right = last(2 * node + 1, middle, to, begin, end, bytes);
    return right >= 0 ? right : last(2 * node, from, middle, begin, end, bytes);
  }

  std::int64_t leaves_ = 1;
  std::vector<std::int64_t> whole_, values_;  // by op; what was added to all of its block is left out of `values_`
  std::vector<std::int64_t> least_, added_;   // by node
};

}  // namespace memfit::swapping
