"""Algorithms in C++ that need no torch. Arrays are one-dimensional and contiguous."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

LARGEST_SMALL_BYTES: int
"""The most bytes of a small storage, which lies on the engine's shelf (native/common/sizes.h)."""

SMALL_SHARE: int
"""The divisor of the budget above whose quotient a storage is not small either."""

HOST_ALIGNMENT: int
"""The alignment of storages in an arena of the CPU's memory, in bytes."""

CUDA_ALIGNMENT: int
"""The alignment of storages in an arena of a GPU's memory, in bytes."""

UNINITIALISED_FACTORIES: frozenset[str]
"""Operators, without overloads, whose callers are still to fill their results (native/common/factories.h)."""

def find_period(tokens: NDArray[np.uint64]) -> tuple[int, int] | None:
    """Return (start, length): from index `start` on, `tokens` repeat every `length`, at least twice.

    Among the primitive periods whose square ends the stream this is the largest; None if there is none.
    """

class ClairvoyantResult:
    """The counts of `clairvoyant_bytes`; the traffic is 0 when the budget is below `required_bytes`."""

    bytes_out: int
    bytes_in: int
    required_bytes: int
    required_op: int

def clairvoyant_bytes(
    *,
    size_bytes: NDArray[np.int64],
    alloc_tick: NDArray[np.int64],
    free_tick: NDArray[np.int64],
    first_tick: NDArray[np.int64],
    workspace_bytes: NDArray[np.int64],
    access_begin: NDArray[np.int64],
    access_storage: NDArray[np.int64],
    access_is_write: NDArray[np.uint8],
    ticks: int,
    alignment: int,
    budget_bytes: int,
) -> ClairvoyantResult:
    """Count what a furthest-next-use policy moves in one iteration, once the iteration has repeated.

    Accesses of op i are rows [access_begin[i], access_begin[i + 1]), one for each distinct storage.
    Raises ValueError if the columns do not describe a trace.
    """

class Packing:
    """Placements of lifetimes, in bytes. `slots` counts, for each lifetime, its entries in a row in `offsets_bytes`."""

    offsets_bytes: NDArray[np.int64]
    slots: NDArray[np.int64]
    footprint_bytes: int
    lower_bound_bytes: int
    peak_bytes: int
    method: str
    seconds: float

def pack(
    *,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    offset_bytes: NDArray[np.int64],
    alignment: int,
    period: int,
    capacity_bytes: int | None,
    effort: float,
    seed: int,
    threads: int,
    progress: Callable[[float, int], None] | None,
) -> Packing:
    """Place lifetimes; `memfit.planning.packing` says how. Period 0 is linear time, offset -1 is free.

    `peak_bytes` is the peak of live bytes, `lower_bound_bytes` at least that. Raises ValueError on malformed columns.
    """

class Rules:
    """The prunings that the exact search makes; all of them by default."""

    dominance: bool
    suffixes: bool
    twins: bool
    split: bool

def smallest_footprint(
    *,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    offset_bytes: NDArray[np.int64],
    period: int,
    rules: Rules,
) -> int:
    """Return the smallest footprint there is, by the exact search alone: for tests, on a few lifetimes.

    Raises RuntimeError after a minute.
    """

def skyline(
    *,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    order: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the offsets of one plan on a skyline, the first of `order` preferred: for its tests.

    Every lifetime has at least one byte.
    """

class Simulated:
    """The result of `simulate_swaps`: one iteration, in microseconds since it began.

    The copies, one of each column for each swap, are those of absences that begin in it.
    """

    iteration_us: float
    is_steady: bool
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    resident_bytes: NDArray[np.int64]
    stall_op: NDArray[np.int64]
    stall_swap: NDArray[np.int64]
    stall_is_in: NDArray[np.int64]
    stall_us: NDArray[np.float64]
    out_start_us: NDArray[np.float64]
    out_end_us: NDArray[np.float64]
    in_start_us: NDArray[np.float64]
    in_end_us: NDArray[np.float64]

def simulate_swaps(
    *,
    duration_us: NDArray[np.float64],
    load_bytes: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    out_after: NDArray[np.int64],
    free_by: NDArray[np.int64],
    in_start: NDArray[np.int64],
    in_before: NDArray[np.int64],
    out_us: NDArray[np.float64],
    in_us: NDArray[np.float64],
    is_early: NDArray[np.uint8],
    both_factor: float,
    most_iterations: int,
) -> Simulated:
    """Repeat the iteration with these swaps until it is steady; `memfit.simulate` says how.

    Raises ValueError on malformed columns.
    """

class ChunkRanges:
    """Ranges [first, last) of chunks; op i has rows [begin[i], begin[i + 1])."""

    def __init__(self, begin: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]) -> None: ...

class PagingRates:
    """How chunks come in and leave; `leaves` is a `Leaves` of `memfit.planning.paging`."""

    def __init__(
        self,
        *,
        in_us_per_byte: float,
        out_us_per_byte: float,
        both_factor: float,
        fault_us: float,
        request_us: float,
        chunks_per_fault: int,
        keeps_copies: bool,
        fresh_faults: bool,
        leaves: int,
    ) -> None:
        """Raises ValueError for a figure that is out of range."""

class Faulted:
    """The result of `simulate_faults`: a column each of the ops, and rows (op, block) of what ops had to wait for."""

    end_us: NDArray[np.float64]
    faults: NDArray[np.int64]
    bytes_in: NDArray[np.int64]
    bytes_out: NDArray[np.int64]
    used_bytes: NDArray[np.int64]
    missed_op: NDArray[np.int64]
    missed_block: NDArray[np.int64]

def simulate_faults(
    *,
    duration_us: NDArray[np.float64],
    window_bytes: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    has_copy: NDArray[np.uint8],
    block_begin: NDArray[np.int64],
    touches: ChunkRanges,
    sweeps: NDArray[np.int64],
    draws: NDArray[np.int64],
    run: NDArray[np.int64],
    next_op: NDArray[np.int64],
    writes: NDArray[np.uint8],
    fetches: ChunkRanges,
    for_op: NDArray[np.int64],
    dismissed: ChunkRanges,
    dropped: ChunkRanges,
    rates: PagingRates,
    seed: int,
) -> Faulted:
    """Run ops on memory whose chunks come in when they are touched; `memfit.planning.paging.faults` says how.

    Raises ValueError on malformed columns.
    """

class Headroom:
    """Bytes of each op in a row, in which a span [begin, end) changes, and is searched, in O(log n)."""

    def __init__(self, bytes: NDArray[np.int64]) -> None:
        """Raises ValueError for an empty row; the other methods, if a span lies beyond the row."""

    def add(self, begin: int, end: int, bytes: int) -> None:
        """Add to the span."""

    def first_below(self, begin: int, end: int, bytes: int) -> int:
        """Return the first op of the span with less than `bytes`, or -1."""

    def last_below(self, begin: int, end: int, bytes: int) -> int:
        """Return the last op of the span with less than `bytes`, or -1."""

class FoundSwaps:
    """The result of `search_swaps`; each candidate in `chosen` has an entry in `free_by` and in `in_start`.

    With all candidates away op `worst_op` needs `least_bytes`: with a smaller budget nothing is chosen.
    """

    is_feasible: bool
    worst_op: int
    least_bytes: int
    iteration_us: float
    compute_us: float
    evaluations: int
    steps: int
    chosen: NDArray[np.int64]
    free_by: NDArray[np.int64]
    in_start: NDArray[np.int64]

def search_swaps(
    *,
    duration_us: NDArray[np.float64],
    load_bytes: NDArray[np.int64],
    size_bytes: NDArray[np.int64],
    after: NDArray[np.int64],
    before: NDArray[np.int64],
    out_us: NDArray[np.float64],
    in_us: NDArray[np.float64],
    start: NDArray[np.int64],
    budget_bytes: int,
    both_factor: float,
    effort: float,
    enough_us: float,
    seed: int,
) -> FoundSwaps:
    """Choose which gaps to swap, beginning at `start` and elsewhere; `memfit.planning.autoswap` says how.

    Raises ValueError on malformed columns.
    """

class FoundChoice:
    """The result of `JointColumns.search`: the mode of each gap, and the op before which each remade one returns.

    `over_bytes` is 0 if all ops keep to the budget; otherwise what they are over it is summed up.
    """

    again_us: float
    wait_us: float
    over_bytes: float
    worst_bytes: int
    evaluations: int
    steps: int
    modes: NDArray[np.uint8]
    returns: NDArray[np.int64]

class JointColumns:
    """A trace's ops, values and gaps, for a search of what is made again and what is swapped (`native/joint`).

    Rows of different lengths are columns of their starts, and of all values. Raises ValueError on malformed columns.
    """

    def __init__(
        self,
        *,
        us: NDArray[np.float64],
        again_us: NDArray[np.float64],
        load_bytes: NDArray[np.int64],
        begin_bytes: NDArray[np.int64],
        born_start: NDArray[np.int64],
        born: NDArray[np.int64],
        reads_start: NDArray[np.int64],
        reads: NDArray[np.int64],
        writes_start: NDArray[np.int64],
        writes: NDArray[np.int64],
        held_bytes: NDArray[np.int64],
    ) -> None: ...
    def values(
        self,
        *,
        storage: NDArray[np.int64],
        writer: NDArray[np.int64],
        last: NDArray[np.int64],
        remakable: NDArray[np.uint8],
        reads_start: NDArray[np.int64],
        reads: NDArray[np.int64],
        of_storage_start: NDArray[np.int64],
        of_storage: NDArray[np.int64],
    ) -> None:
        """Say which values there are; a writer is -1 if it is none of the ops."""

    def gaps(
        self,
        *,
        storage: NDArray[np.int64],
        after: NDArray[np.int64],
        before: NDArray[np.int64],
        remakable: NDArray[np.uint8],
        returns: NDArray[np.uint8],
        of_storage_start: NDArray[np.int64],
        of_storage: NDArray[np.int64],
    ) -> None:
        """Say which gaps there are; `before` is counted on over the iteration's end.

        A storage that `returns` not in a gap is dropped there for good.
        """

    def search(
        self,
        *,
        start: NDArray[np.uint8],
        price_us: NDArray[np.float64],
        keep: NDArray[np.float64],
        remake: NDArray[np.float64],
        out_us: NDArray[np.float64],
        in_us: NDArray[np.float64],
        budget_bytes: int,
        most_ops: int,
        both_factor: float,
        effort: float,
        seed: int,
        mends: bool,
        waits: int,
    ) -> FoundChoice:
        """Return the best modes found from `start` on: 0 stays, 1 swapped, 2 made again, 3 made again and passing.

        4 to 6 are swaps for which ops wait: for the copy out, the copy in, and both. What ops may wait for is nothing
        (`waits` 0), the copies of such swaps (1), or what the scheduler of swap plans says (2).
        """
