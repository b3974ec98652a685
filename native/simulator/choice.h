// A set of chosen gaps, and what it leaves of the budget at each op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/schedule.h"
#include "simulator/slack.h"

namespace memfit::swapping {

class Choice {
 public:
  Choice(const Ops& ops, const Candidates& candidates, std::int64_t budget_bytes)
      : ops_(ops), all_(candidates), flags_(candidates.count, 0), slack_(of_nothing(ops, budget_bytes)) {}

  const std::vector<std::uint8_t>& flags() const { return flags_; }
  bool has(std::int64_t c) const { return flags_[c] != 0; }

  // Of each op: O(ops). Of one op, and of the one that leaves least: O(log ops) and less.
  const std::vector<std::int64_t>& slack() { return slack_.all(); }
  std::int64_t slack_at(std::int64_t op) const { return slack_.at(op); }
  std::int64_t least_slack() const { return slack_.least(); }
  std::int64_t tightest() const { return slack_.first_least(); }

  // The op that is most over the budget, or -1.
  std::int64_t worst() const { return slack_.least() < 0 ? slack_.first_least() : -1; }

  void flip(std::int64_t c) {
    const std::int64_t amount = flags_[c] ? -all_.size_bytes[c] : all_.size_bytes[c];
    flags_[c] ^= 1;
    each_span(c, [&](std::int64_t begin, std::int64_t end) { slack_.add(begin, end, amount); });
    steps_ += slack_.levels();
  }

  // Whether every op still fits without `c`.
  bool can_spare(std::int64_t c) { return least_within(c) >= all_.size_bytes[c]; }

  // Takes back what is not needed, the dearest of `price` first; returns how many there were.
  template <typename Price>
  std::int64_t spare(const Price& price) {
    std::vector<std::pair<double, std::int64_t>> order;
    for (std::int64_t c = 0; c < all_.count; ++c)
      if (has(c)) order.emplace_back(-price[c], c);
    std::sort(order.begin(), order.end());
    for (const auto& [_, c] : order)
      if (can_spare(c)) flip(c);
    return static_cast<std::int64_t>(order.size());
  }

  // Whether an op that is over the budget gets anything from `c`.
  bool helps(std::int64_t c) { return least_within(c) < 0; }

  bool covers(std::int64_t c, std::int64_t op) const {
    return (all_.after[c] < op && op < all_.before[c]) || op + ops_.count < all_.before[c];
  }

  // The work so far, in the scheduler's steps.
  std::int64_t steps() const { return steps_; }

 private:
  static std::vector<std::int64_t> of_nothing(const Ops& ops, std::int64_t budget_bytes) {
    std::vector<std::int64_t> slack(ops.count);
    for (std::int64_t k = 0; k < ops.count; ++k) slack[k] = budget_bytes - ops.load_bytes[k];
    return slack;
  }

  std::int64_t least_within(std::int64_t c) {
    std::int64_t least = Slack::kNoOp;
    each_span(c, [&](std::int64_t begin, std::int64_t end) { least = std::min(least, slack_.least(begin, end)); });
    steps_ += slack_.levels();
    return least;
  }

  template <typename Visit>
  void each_span(std::int64_t c, Visit visit) const {
    const std::int64_t begin = all_.after[c] + 1, end = all_.before[c];
    visit(begin, std::min(end, ops_.count));
    if (end > ops_.count) visit(0, end - ops_.count);
  }

  const Ops ops_;
  const Candidates all_;
  std::vector<std::uint8_t> flags_;
  Slack slack_;
  std::int64_t steps_ = 0;
};

}  // namespace memfit::swapping
