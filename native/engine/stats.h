// Stats: what a session counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memfit {

struct Stats {
  size_t budget = 0, live = 0, resident = 0, footprint = 0, peak_live = 0, peak_resident = 0, peak_footprint = 0;
  size_t free_bytes = 0, largest_free = 0, tier_used = 0, tier_footprint = 0, adopted = 0, strays = 0;
  size_t planned_footprint = 0;  // of the plan in force, or that was last
  uint64_t plans = 0, planned = 0, mismatches = 0;
  uint64_t ops = 0, allocations = 0, evictions = 0, drops = 0, bytes_out = 0, bytes_in = 0, relocations = 0;
  uint64_t bytes_relocated = 0, consolidations = 0, iterations = 0;
  uint64_t unseen_writes = 0, bytes_checked = 0, check_ns = 0;  // by whatever is no op
  uint64_t growths = 0;  // ops for which the budget was exceeded,
  size_t peak_growth = 0;  // by so much at most
  uint64_t swaps = 0, prefetches = 0, failed_copies = 0, derailments = 0;  // of plans that swap
  uint64_t lane_failures = 0;  // no thread could be had for such a plan's copies: it was not used
  size_t records = 0;  // bytes of the heap, for what is known of iterations
  uint64_t recording_given_up = 0;  // ops after which no iteration had been found
  uint64_t stall_ns = 0;  // ops waited for a lane
  uint64_t copy_ns = 0;   // ops waited for a copy of their own
  uint64_t out_ns = 0, in_ns = 0;  // all copies took, whoever waited, but for
  size_t untimed_out = 0, untimed_in = 0;  // bytes that were copied in the order of a GPU's work
};

}  // namespace memfit
