// A set of chosen gaps, and what it leaves of the budget at each op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulator/schedule.h"

namespace memfit::swapping {

class Choice {
 public:
  Choice(const Ops& ops, const Candidates& candidates, std::int64_t budget_bytes)
      : ops_(ops), all_(candidates), flags_(candidates.count, 0), slack_(ops.count) {
    for (std::int64_t k = 0; k < ops.count; ++k) slack_[k] = budget_bytes - ops.load_bytes[k];
  }

  const std::vector<std::uint8_t>& flags() const { return flags_; }
  const std::vector<std::int64_t>& slack() const { return slack_; }
  bool has(std::int64_t c) const { return flags_[c] != 0; }

  void flip(std::int64_t c) {
    const std::int64_t amount = flags_[c] ? -all_.size_bytes[c] : all_.size_bytes[c];
    flags_[c] ^= 1;
    each_span(c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k) slack_[k] += amount;
    });
  }

  // Whether every op still fits without `c`.
  bool can_spare(std::int64_t c) const {
    bool can = true;
    each_span(c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end && can; ++k) can = slack_[k] >= all_.size_bytes[c];
    });
    return can;
  }

  bool covers(std::int64_t c, std::int64_t op) const {
    return (all_.after[c] < op && op < all_.before[c]) || op + ops_.count < all_.before[c];
  }

  // The bytes over the budget that `c` would take away, summed over ops.
  double relief(std::int64_t c) const {
    double sum = 0;
    each_span(c, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t k = begin; k < end; ++k)
        if (slack_[k] < 0) sum += static_cast<double>(std::min(all_.size_bytes[c], -slack_[k]));
    });
    return sum;
  }

  // The op that is most over the budget, or -1.
  std::int64_t worst() const {
    const auto least = std::min_element(slack_.begin(), slack_.end());
    return *least < 0 ? least - slack_.begin() : -1;
  }

 private:
  template <typename Visit>
  void each_span(std::int64_t c, Visit visit) const {
    const std::int64_t begin = all_.after[c] + 1, end = all_.before[c];
    visit(begin, std::min(end, ops_.count));
    if (end > ops_.count) visit(0, end - ops_.count);
  }

  const Ops ops_;
  const Candidates all_;
  std::vector<std::uint8_t> flags_;
  std::vector<std::int64_t> slack_;
};

}  // namespace memfit::swapping
