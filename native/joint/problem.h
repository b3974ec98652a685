// What a search for remakings and swaps is given: the values of a trace, its gaps, and what its ops allocate.
#pragma once

#include <cstdint>

namespace memfit::joint {

// Rows of numbers of different lengths: those of row i are values[start[i]] to values[start[i + 1]].
struct Rows {
  const std::int64_t* start;
  const std::int64_t* values;

  const std::int64_t* begin(std::int64_t row) const { return values + start[row]; }
  const std::int64_t* end(std::int64_t row) const { return values + start[row + 1]; }
};

// For each op: its microseconds, those of running it again, the most bytes while it runs and those when it begins; the
// storages that it allocates itself, and those that it reads and writes when it runs again.
struct OpColumns {
  std::int64_t count;
  const double* us;
  const double* again_us;
  const std::int64_t* load_bytes;
  const std::int64_t* begin_bytes;
  Rows born;
  Rows reads, writes;
};

// The values in the order of their storages, and of their writers; a writer is -1 if it is none of the ops. `reads` has
// the values that a value is made from.
struct ValueColumns {
  std::int64_t count;
  const std::int64_t* storage;
  const std::int64_t* writer;
  const std::int64_t* last;
  const std::uint8_t* remakable;
  Rows reads;
  Rows of_storage;
};

// The gaps, those of a storage one after the other; `before` is counted on over the iteration's end. One that does not
// return ends with its storage's life: nothing has to make it again.
struct GapColumns {
  std::int64_t count;
  const std::int64_t* storage;
  const std::int64_t* after;
  const std::int64_t* before;
  const double* out_us;  // of the copies; infinite if it may not be swapped
  const double* in_us;   // 0 of a storage that does not return
  const std::uint8_t* remakable;
  const std::uint8_t* returns;
  Rows of_storage;
};

// What ops may wait for: nothing, the copies whose mode says so, or whatever the scheduler of swap plans finds.
enum Waits : std::uint8_t { kNever = 0, kWhereForced = 1, kTimed = 2 };

struct Problem {
  OpColumns ops;
  ValueColumns values;
  GapColumns gaps;
  std::int64_t storages;
  const std::int64_t* held_bytes;  // of each storage
  std::int64_t budget_bytes;
  std::int64_t most_ops;  // of a recipe
  std::uint8_t waits;     // of `Waits`
  double both_factor;     // the part of its speed that a link has while the other direction is busy too
};

// A storage that is swapped leaves and returns while ops run, or they wait for its copy out, its copy in, or both. If
// waits are timed, the four are the same.
enum Mode : std::uint8_t { kKept = 0, kSwapped = 1, kRemade = 2, kPassing = 3, kLeaving = 4, kComing = 5, kForced = 6 };

inline bool is_remade(std::uint8_t mode) { return mode == kRemade || mode == kPassing; }
inline bool is_swapped(std::uint8_t mode) { return mode != kKept && !is_remade(mode); }
inline bool waits_out(std::uint8_t mode) { return mode == kLeaving || mode == kForced; }
inline bool waits_in(std::uint8_t mode) { return mode == kComing || mode == kForced; }

}  // namespace memfit::joint
