// The packer: greedy plans at once, then search in rounds until the bound is met or the effort is spent.
#pragma once

#include <cstdint>
#include <functional>

#include "packer/problem.h"

namespace memfit::packing {

struct Options {
  Quanta goal = 0;       // a footprint that is good enough; the lower bound stands in if it is higher
  double effort = 1.0;   // seconds of one core's counted work
  std::uint64_t seed = 0;
  int threads = 1;
};

// The way a plan was found.
enum class Method { kGreedy, kSkyline, kExact, kEjection };

struct Plan {
  Offsets offsets;
  Quanta footprint = 0;
  Quanta lower_bound = 0;  // the peak of live quanta, or what a finished search has shown beyond it
  Method method = Method::kGreedy;
  double seconds = 0;
};

// Told each better footprint when it is found, on the calling thread, and how many seconds in.
using Progress = std::function<void(double, Quanta)>;

// Work is counted, and no clock ends it: the plan depends on neither the threads nor the machine.
Plan pack(const Problem& problem, const Options& options, const Progress& progress);

}  // namespace memfit::packing
