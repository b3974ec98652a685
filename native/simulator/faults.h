// Ops on memory whose chunks come in when they are touched: memfit/planning/paging/faults.py says what each field means.
#pragma once

#include <cstdint>
#include <vector>

namespace memfit::swapping {

// The block that leaves when there is no room: the one touched longest ago; the one that came in first; the eighth of
// those that came in last, since fewer may be in use at once; the one that is used last from now on.
enum class Leaves : int { kLeastRecent, kOldest, kNewest, kUsedLast };

// Chunks [begin[b], begin[b + 1]) are block b, which leaves as a whole. A chunk that `has_copy` is read when it comes
// in; one without has no contents yet.
struct ChunkColumns {
  const std::int64_t* size_bytes;
  const std::uint8_t* has_copy;
  std::int64_t count;
  const std::int64_t* block_begin;
  std::int64_t blocks;
};

// Ranges [first, last) of chunks; op i has rows [begin[i], begin[i + 1]).
struct RangeColumns {
  const std::int64_t *begin, *first, *last;
};

// What the ops touch: `sweeps` times from the first chunk to the last, or, with draws, runs of chunks at random places.
// `next_op` is the op that touches the range again.
struct TouchColumns {
  RangeColumns ranges;
  const std::int64_t *sweeps, *draws, *run, *next_op;
  const std::uint8_t* writes;
};

// `for_op` is the op that a range is fetched for: until then no other fetch takes its place.
struct FetchColumns {
  RangeColumns ranges;
  const std::int64_t* for_op;
};

struct Paged {
  const double* duration_us;
  const std::int64_t* window_bytes;  // the most bytes of chunks while each op runs
  std::int64_t ops;
  ChunkColumns chunks;
  TouchColumns touches;
  FetchColumns fetches;    // before the op, beside it
  RangeColumns dismissed;  // these leave after the op, beside the next ones
  RangeColumns dropped;    // nobody wants these after the op: they leave without a copy
};

struct PagingRates {
  double in_us_per_byte, out_us_per_byte, both_factor, fault_us, request_us;
  std::int64_t chunks_per_fault;
  bool keeps_copies;  // a chunk that came in, and was not written to, leaves without a copy
  bool fresh_faults;  // a chunk without contents is a fault even where there is room for it
  Leaves leaves;
};

// Each op's figures, the most bytes of chunks while it ran among them, and which block each op had to wait for, once an
// op and block.
struct Faulted {
  std::vector<double> end_us;
  std::vector<std::int64_t> faults, bytes_in, bytes_out, used_bytes, missed_op, missed_block;
};

Faulted page(const Paged& paged, const PagingRates& rates, std::uint64_t seed);

}  // namespace memfit::swapping
