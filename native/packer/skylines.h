// Iterated local search over the orders a skyline is built in: many cheap plans, the best order shaken again.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/clock.h"
#include "packer/problem.h"
#include "packer/random.h"

namespace memfit::packing {

class Skylines {
 public:
  // The problem must be flat.
  Skylines(const Problem& problem, std::uint64_t seed);

  // Makes plans, at least one, until one of at most `goal` is found, or `plans` are made or `work` is used up; counts
  // that down. Whether a plan is better than all before.
  bool improve(Quanta goal, std::int64_t plans, std::int64_t& work, const Stop& stop);

  // The best plan so far.
  const Offsets& offsets() const { return best_; }

 private:
  std::vector<std::int32_t> next_order();
  void move_some(std::vector<std::int32_t>& order);

  const Problem& problem_;
  Random random_;
  std::vector<std::int32_t> plain_[2], best_order_;
  Offsets best_;
  Quanta footprint_ = 0;
  std::int64_t made_ = 0;
};

}  // namespace memfit::packing
