// Stats: the figures of a session. This table is the only one: the struct, Python's dict and docs/guide.md are made of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace memfit {

// Its type, its name (which ends in its unit, if it has one), its meaning.
#define MEMFIT_STATS(X)                                                                                                \
  X(size_t, budget_bytes, "the limit; 0 while there is none")                                                          \
  X(size_t, live_bytes, "all storages, wherever their bytes are")                                                      \
  X(size_t, resident_bytes, "the storages in the arena")                                                               \
  X(size_t, footprint_bytes, "the highest used address of the arena")                                                  \
  X(size_t, free_bytes, "free in the arena")                                                                           \
  X(size_t, largest_free_bytes, "the arena's largest hole")                                                            \
  X(size_t, peak_live_bytes, "the most that `live_bytes` has been")                                                    \
  X(size_t, peak_resident_bytes, "the most that `resident_bytes` has been")                                            \
  X(size_t, peak_footprint_bytes, "the most that `footprint_bytes` has been")                                          \
  X(size_t, tier_used_bytes, "in the tier now")                                                                        \
  X(size_t, tier_footprint_bytes, "the highest used address of the tier")                                              \
  X(size_t, adopted_bytes, "storages made before the session")                                                         \
  X(size_t, stray_bytes, "immovable beyond the limit when a share took effect")                                        \
  X(size_t, pinned_bytes, "storages that stay where they are until they die, since their addresses are known outside")      \
  X(size_t, collective_bytes, "other storages that collectives were given which have yet to complete")                     \
  X(size_t, peak_beside_bytes, "the most that gloo's threads have had for themselves: plans leave room for it")            \
  X(uint64_t, ops, "ops that have begun")                                                                              \
  X(uint64_t, ops_at_once, "calls of generated kernels among them for which nothing moved and nobody waited")             \
  X(uint64_t, allocations, "storages allocated")                                                                       \
  X(uint64_t, evictions, "storages that left the arena")                                                               \
  X(uint64_t, drops, "evictions that moved nothing, since the tier's copy was valid")                                  \
  X(uint64_t, bytes_out, "bytes moved to the tier")                                                                    \
  X(uint64_t, bytes_in, "bytes moved from the tier")                                                                   \
  X(uint64_t, bytes_stored, "bytes written to the tier's medium: fewer than `bytes_out` where the tier compresses")      \
  X(uint64_t, bytes_loaded, "bytes read from the tier's medium, likewise of `bytes_in`")                               \
  X(uint64_t, discards, "storages that left the arena to be made again")                                               \
  X(uint64_t, bytes_discarded, "their bytes")                                                                          \
  X(uint64_t, recomputations, "storages that were made again, by the ops that had made them")                                 \
  X(uint64_t, failed_recomputations, "re-runs that failed, or gave other bytes")                                              \
  X(uint64_t, recompute_ns, "time that re-runs took (on a GPU they are part of its work: 0)")                            \
  X(uint64_t, handovers, "inputs whose place an output took")                                                          \
  X(uint64_t, bytes_handed_over, "and their bytes")                                                                   \
  X(uint64_t, trims, "results in a storage twice as large as they need, or larger, that got a smaller one")            \
  X(uint64_t, relocations, "storages moved inside the arena")                                                          \
  X(uint64_t, bytes_relocated, "their bytes")                                                                          \
  X(uint64_t, consolidations, "times that an op's inputs were slid together")                                          \
  X(uint64_t, punches, "storages placed beyond the limit, with a hole punched below it for their bytes")               \
  X(uint64_t, iterations, "iterations that have ended: steps of the optimizer that ends them, or forward passes")                                                                \
  X(size_t, planned_footprint_bytes,                                                                                   \
    "part of the arena kept for what the plan in force places, or the one that was last")                              \
  X(uint64_t, plans, "times that a plan came into force")                                                              \
  X(uint64_t, planned_allocations, "allocations that got their addresses from a plan")                                 \
  X(uint64_t, plan_mismatches, "allocations that were not as planned")                                                 \
  X(uint64_t, unseen_writes,                                                                                           \
    "storages that changed though no op was seen to write to them; the changes were found and kept")                   \
  X(uint64_t, bytes_checked, "bytes compared with their copies before those were trusted")                             \
  X(uint64_t, check_ns, "time that this took")                                                                         \
  X(uint64_t, split_ops, "ops that ran in slices, since they did not fit at once")                                     \
  X(uint64_t, slices, "their slices")                                                                                  \
  X(uint64_t, slice_bytes_in, "bytes that slices read from the tier")                                                  \
  X(uint64_t, slice_bytes_out, "bytes that slices wrote to the tier")                                                  \
  X(uint64_t, growths, "times that the limit gave way for an op (`--grow`)")                                           \
  X(size_t, peak_growth_bytes, "the most that it gave way by")                                                         \
  X(uint64_t, mapped_ops, "ops that did not fit, and ran on mapped storages")                                          \
  X(uint64_t, mapped_storages, "times that a storage was mapped for an op")                                            \
  X(uint64_t, faults, "chunks of mapped storages that ops touched, and that had to come in or be opened for writing")  \
  X(uint64_t, fault_ns, "time that this took")                                                                         \
  X(uint64_t, mapped_bytes_in, "bytes of mapped storages read from the tier")                                          \
  X(uint64_t, mapped_bytes_out, "and written to it")                                                                   \
  X(size_t, frame_bytes, "page frames of mapped storages, which take their room from the arena")                       \
  X(size_t, peak_frame_bytes, "the most that `frame_bytes` has been")                                                  \
  X(uint64_t, swaps, "storages that left by a plan, copied beside the ops")                                            \
  X(uint64_t, prefetches, "storages that came back by a plan, copied beside the ops")                                  \
  X(uint64_t, failed_copies,                                                                                           \
    "planned copies that failed, and were done again when their bytes were needed")                                    \
  X(uint64_t, derailments, "iterations under a plan whose ops were not all the plan's, or not all of them")             \
  X(uint64_t, unplanned_ops, "ops under a plan that it does not have")                                                  \
  X(uint64_t, missing_ops, "ops of a plan that did not come")                                                           \
  X(uint64_t, lane_failures,                                                                                           \
    "plans that were not used, since no thread could be started for their copies")                                     \
  X(size_t, record_bytes,                                                                                              \
    "memfit's own records of iterations and plans, at present ([how much](limits.md#what-the-process-uses))")          \
  X(uint64_t, planner_failures,                                                                                        \
    "errors of the planner itself: iterations run as they did, and it tries again later")                               \
  X(uint64_t, recording_given_up_ops,                                                                                  \
    "ops after which the search for an iteration ended, since none had been found; 0 while it goes on")                \
  X(uint64_t, stall_ns, "time that ops waited for planned copies, as far as these were timed")                        \
  X(uint64_t, copy_ns, "time that ops waited for copies that no plan had foreseen")                                    \
  X(uint64_t, out_ns, "time that all copies to the tier took, whoever waited")                                         \
  X(uint64_t, in_ns, "time that all copies from the tier took, whoever waited")                                        \
  X(size_t, untimed_out_bytes,                                                                                         \
    "bytes moved to the tier in no such time: on a GPU these copies are part of its work")                             \
  X(size_t, untimed_in_bytes, "bytes moved from the tier in no such time")                                             \
  X(uint64_t, timed_copies_out, "planned copies to the tier whose time is known: on a GPU some of them are timed")     \
  X(uint64_t, timed_copies_in, "planned copies from the tier whose time is known")                                     \
  X(uint64_t, timed_iterations, "iterations under a plan whose copies were timed")                                     \
  X(uint64_t, measured_iterations, "iterations whose time is known: a GPU may be some behind")                         \
  X(uint64_t, iterations_ns, "their time")

struct Stats {
#define MEMFIT_MEMBER(type, name, meaning) type name = 0;
  MEMFIT_STATS(MEMFIT_MEMBER)
#undef MEMFIT_MEMBER
};

}  // namespace memfit
