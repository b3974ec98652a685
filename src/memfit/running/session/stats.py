"""Stats: the figures of a session."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stats:
    """The figures of a session so far. Sizes in bytes; `peak_*` since the budget took effect.

    `live` counts every storage, wherever its bytes are; `resident` those in the arena; `footprint` is the
    highest used address of the arena. `drops` are evictions that moved nothing, since the tier's copy was valid.
    Of the `ops`, those `ops_at_once` are calls of generated kernels for which nothing moved and nobody waited.
    Of `bytes_out` and `bytes_in`, `bytes_stored` were written and `bytes_loaded` read: fewer where the tier compresses.
    `discards` left the arena without a copy and were made again, if used again, by the ops that had made them
    (`recomputations`, in `recompute_ns`); `failed_recomputations` could not be, or gave other bytes. `handovers` are
    inputs whose place an op's output took. `trims` are results that lay in a storage twice as large as they need, or
    larger, and got a smaller one. `planned_allocations` got their addresses
    from a plan; `plan_mismatches` were not as planned. `swaps` left the arena
    and `prefetches` came back by a plan, copied beside the ops, which waited `stall_ns` for them; `copy_ns` is what ops
    waited for copies that no plan had foreseen. `derailments` are iterations whose ops were not the plan's, by
    `unplanned_ops` that it does not have, or `missing_ops` of its own that did not come;
    `lane_failures` plans that were not used, since the system had no thread left for their copies.
    `recording_given_up_ops` is after how many ops no iteration had been found and memfit stopped looking (0: it did
    not); an optimizer's step makes it look again. `record_bytes` are memfit's own records of iterations and plans, at
    present. `planner_failures` are errors of the planner's own, after each of which it tries again later. All copies
    together took `out_ns` and `in_ns`, but for those of `untimed_*` bytes, which no clock was held to: on a GPU they
    are part of its work. `unseen_writes` are storages that changed though no op was seen to write to them, found among
    the `bytes_checked` before their copies were trusted, in `check_ns`. `split_ops` did not fit at once and ran in
    `slices`, which read `slice_bytes_in` from the tier and wrote `slice_bytes_out` to it. `growths` are the times the
    budget was exceeded for an op, by `peak_growth_bytes` at most. `mapped_ops` needed more than the budget and ran on
    mapped storages, whose bytes came in by `faults` through page frames of `peak_frame_bytes` at most, for which the
    arena has made room. `pinned_bytes` stay where they are until they die, and `collective_bytes` until the collectives
    that were given them are complete; gloo's threads have had `peak_beside_bytes` for themselves at most.
    """

    budget_bytes: int
    live_bytes: int
    resident_bytes: int
    footprint_bytes: int
    free_bytes: int
    largest_free_bytes: int
    peak_live_bytes: int
    peak_resident_bytes: int
    peak_footprint_bytes: int
    tier_used_bytes: int
    tier_footprint_bytes: int
    adopted_bytes: int
    stray_bytes: int
    pinned_bytes: int
    collective_bytes: int
    peak_beside_bytes: int
    ops: int
    ops_at_once: int
    allocations: int
    evictions: int
    drops: int
    bytes_out: int
    bytes_in: int
    bytes_stored: int
    bytes_loaded: int
    discards: int
    bytes_discarded: int
    recomputations: int
    failed_recomputations: int
    recompute_ns: int
    handovers: int
    bytes_handed_over: int
    trims: int
    relocations: int
    bytes_relocated: int
    consolidations: int
    punches: int
    iterations: int
    planned_footprint_bytes: int
    plans: int
    planned_allocations: int
    plan_mismatches: int
    unseen_writes: int
    bytes_checked: int
    check_ns: int
    split_ops: int
    slices: int
    slice_bytes_in: int
    slice_bytes_out: int
    growths: int
    peak_growth_bytes: int
    mapped_ops: int
    mapped_storages: int
    faults: int
    fault_ns: int
    mapped_bytes_in: int
    mapped_bytes_out: int
    frame_bytes: int
    peak_frame_bytes: int
    swaps: int
    prefetches: int
    failed_copies: int
    derailments: int
    unplanned_ops: int
    missing_ops: int
    lane_failures: int
    record_bytes: int
    planner_failures: int
    recording_given_up_ops: int
    stall_ns: int
    copy_ns: int
    out_ns: int
    in_ns: int
    untimed_out_bytes: int
    untimed_in_bytes: int
    timed_copies_out: int
    timed_copies_in: int
    timed_iterations: int
    measured_iterations: int
    iterations_ns: int

    @property
    def waited_ns(self) -> int:
        """The nanoseconds that ops waited for copies, whether a plan had foreseen them or not."""
        return self.stall_ns + self.copy_ns

    @property
    def fragmentation(self) -> float:
        """The part of the free space that is not in its largest hole, 0 to 1."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0
