// The effect of a plan's swaps on an iteration that repeats: memfit/simulate.py says what each field means.
#pragma once

#include <cstdint>
#include <vector>

namespace memfit::swapping {

struct Ops {
  const double* duration_us;
  const std::int64_t* load_bytes;
  std::int64_t count;
};

// Op indices counted on over the iteration's end. `is_early`: the bytes are free as soon as the copy has ended,
// and not only from `free_by` on.
struct SwapColumns {
  const std::int64_t *size_bytes, *out_after, *free_by, *in_start, *in_before;
  const double *out_us, *in_us;  // the latter is 0 of what does not return
  const std::uint8_t* is_early;
  std::int64_t count;
};

struct StallRow {
  std::int64_t op, swap;
  bool is_in;
  double us;
};

// One iteration, times since it began. The copies are those of absences that began in it.
struct Simulated {
  double iteration_us = 0;
  bool is_steady = false;
  std::vector<double> start_us, end_us;
  std::vector<std::int64_t> resident_bytes;
  std::vector<StallRow> stalls;
  std::vector<double> out_start_us, out_end_us, in_start_us, in_end_us;
};

// Repeats the iteration until it takes as long as the one before, which was not the first, and leaves as much to copy;
// at most `most_iterations` times.
Simulated simulate(const Ops& ops, const SwapColumns& swaps, double both_factor, int most_iterations);

}  // namespace memfit::swapping
