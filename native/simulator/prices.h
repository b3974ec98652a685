// What swapping each candidate costs and brings, by sums over its gap: O(1) each, from sums up to each op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "simulator/schedule.h"

namespace memfit::swapping {

class Prices {
 public:
  Prices(const Ops& ops, const Candidates& all, std::int64_t budget_bytes)
      : all_(all), ops_(ops.count), busy_us_(2 * ops.count + 1, 0), excess_(2 * ops.count + 1, 0), price_(all.count) {
    for (std::int64_t k = 0; k < 2 * ops_; ++k) {
      const std::int64_t over = ops.load_bytes[k % ops_] - budget_bytes;
      busy_us_[k + 1] = busy_us_[k] + ops.duration_us[k % ops_];
      excess_[k + 1] = excess_[k] + static_cast<double>(std::max<std::int64_t>(0, over));
    }
    for (std::int64_t c = 0; c < all.count; ++c) price_[c] = exposed_us(c) + kLeastUs;
  }

  // A swap's least cost in microseconds; above zero.
  double operator[](std::int64_t c) const { return price_[c]; }

  // The time of the ops in the gap.
  double idle_us(std::int64_t c) const { return busy_us_[all_.before[c]] - busy_us_[all_.after[c] + 1]; }

  // The bytes over the budget, summed over the ops in the gap.
  double excess(std::int64_t c) const { return excess_[all_.before[c]] - excess_[all_.after[c] + 1]; }

 private:
  // The part of its copies that the gap does not hide; and the link's time, lightly.
  double exposed_us(std::int64_t c) const {
    const double copies_us = all_.out_us[c] + all_.in_us[c];
    return std::max(0.0, copies_us - idle_us(c)) + 0.01 * copies_us;
  }

  static constexpr double kLeastUs = 1e-9;

  const Candidates all_;
  const std::int64_t ops_;
  std::vector<double> busy_us_, excess_;  // of all ops before, over two iterations
  std::vector<double> price_;
};

}  // namespace memfit::swapping
