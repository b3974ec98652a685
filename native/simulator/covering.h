// The candidates whose gaps cover an op: counted in O(log n), and each of them found in O(log n).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/schedule.h"

namespace memfit::swapping {

// A tree over ops. A gap is listed at the few nodes that make up its ops, so that of the nodes above an op exactly one
// lists each gap that covers it. O(candidates x log n) memory.
class Covering {
 public:
  Covering(const Ops& ops, const Candidates& all) : ops_(ops), all_(all) {
    while (leaves_ < ops.count) leaves_ *= 2;
    begin_.assign(2 * static_cast<std::size_t>(leaves_) + 1, 0);
    for (std::int64_t c = 0; c < all.count; ++c) each_node(c, [&](std::int64_t node) { ++begin_[node + 1]; });
    for (std::size_t node = 1; node < begin_.size(); ++node) begin_[node] += begin_[node - 1];
    listed_.resize(begin_.back());
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (std::int64_t c = 0; c < all.count; ++c)
      each_node(c, [&](std::int64_t node) { listed_[next[node]++] = static_cast<std::int32_t>(c); });
  }

  std::int64_t count(std::int64_t op) const {
    std::int64_t sum = 0;
    for (std::int64_t node = op + leaves_; node > 0; node /= 2) sum += size(node);
    return sum;
  }

  // One of `count(op)` in an order that does not change.
  std::int64_t nth(std::int64_t op, std::int64_t n) const {
    std::int64_t node = op + leaves_;
    for (; n >= size(node); node /= 2) n -= size(node);
    return listed_[begin_[node] + static_cast<std::size_t>(n)];
  }

 private:
  std::int64_t size(std::int64_t node) const { return static_cast<std::int64_t>(begin_[node + 1] - begin_[node]); }

  template <typename Visit>
  void each_node(std::int64_t c, Visit visit) const {
    const std::int64_t begin = all_.after[c] + 1, end = all_.before[c];
    each_part(begin, std::min(end, ops_.count), visit);
    if (end > ops_.count) each_part(0, end - ops_.count, visit);
  }

  template <typename Visit>
  void each_part(std::int64_t begin, std::int64_t end, Visit visit) const {
    std::int64_t first = begin + leaves_, last = std::max(begin, end) + leaves_;
    for (; first < last; first /= 2, last /= 2) {
      if (first & 1) visit(first++);
      if (last & 1) visit(--last);
    }
  }

  const Ops ops_;
  const Candidates all_;
  std::int64_t leaves_ = 1;
  std::vector<std::size_t> begin_;  // by node, of its list
  std::vector<std::int32_t> listed_;
};

}  // namespace memfit::swapping
