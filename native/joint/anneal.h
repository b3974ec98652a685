// A local search for what is made again and what is swapped, judged by the sketch. It counts its work and reads no
// clock.
#pragma once

#include <cstdint>
#include <vector>

#include "joint/problem.h"

namespace memfit::joint {

// `effort_s` is of counted work, about a second of a slow core for each. For each gap, `price_us` is what making its
// storage again may cost, `keep` how likely it is that the storage stays, and `remake` that it is made again if not.
// A search that `mends` first uses one gap after the other where there is too much, and leaves out what is not needed.
struct AnnealOptions {
  double effort_s;
  std::uint64_t seed;
  const double* price_us;
  const double* keep;
  const double* remake;
  bool mends;
};

struct Annealed {
  std::vector<std::uint8_t> modes;
  std::vector<std::int64_t> returns;
  double again_us = 0, wait_us = 0;
  double over_bytes = 0;  // 0 if every op keeps to the budget
  std::int64_t worst_bytes = 0, evaluations = 0, steps = 0;
};

// The best found from `start`, which is looked at even if there is no effort.
Annealed anneal(const Problem& problem, const std::vector<std::uint8_t>& start, const AnnealOptions& options);

}  // namespace memfit::joint
