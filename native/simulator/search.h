// The choice of gaps to swap: greedy starts, then a local search with the scheduler as judge. Work is counted, and no
// clock is read, so that a search ends at the same place on every machine, however busy.
#pragma once

#include <cstdint>
#include <vector>

#include "packer/random.h"
#include "simulator/schedule.h"

namespace memfit::swapping {

// `effort_s` is of counted work, about a second of a slow core for each. The greedy starts are made in any case.
struct SearchOptions {
  std::int64_t budget_bytes;
  double both_factor, effort_s;
  double enough_us;  // a plan whose stalls take at most this is good enough
  std::uint64_t seed;
};

struct Found {
  bool is_feasible = false;
  std::int64_t worst_op = 0, least_bytes = 0;  // with all candidates away: what the budget has to be, and where
  double iteration_us = 0, compute_us = 0;
  std::int64_t evaluations = 0, steps = 0;
  std::vector<std::int64_t> chosen;  // candidates
  std::vector<Schedule> schedules;   // of each
};

Found search(const Ops& ops, const Candidates& candidates, const std::vector<std::int64_t>& start,
             const SearchOptions& options);

}  // namespace memfit::swapping
