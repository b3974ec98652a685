"""The swaps and drops of a plan in the columns that the engine reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memfit.ir import Swap
from memfit.planning.addresses import AddressPlan
from memfit.running.engine import OpHash, RemakeTableColumns, SwapTableColumns
from memfit.running.planned.carried_out import CarriedOut


def swap_columns(
    iteration: CarriedOut, swaps: Sequence[Swap], addresses: AddressPlan, op_hash: OpHash
) -> SwapTableColumns:
    """Return the columns for `swaps` of an iteration with remakings, and for the storages that are dropped in it.

    Arguments:
        iteration: The iteration.
        swaps: Its swaps.
        addresses: The takes, those that bring a storage back among them.
        op_hash: The engine's hash of an op.

    Returns:
        The columns.
    """
    trace = iteration.recorded.trace
    ops, blocks = len(trace.ops), iteration.recorded.blocks
    storages = _leaving(iteration, swaps)
    index = {storage: i for i, storage in enumerate(storages)}
    is_old = [trace.storages[s].born_before for s in storages]
    allocations = _allocations(iteration)
    known = [(0, 0) if old else allocations[blocks[s]] for s, old in zip(storages, is_old, strict=True)]
    mapped = [(each.op, storage) for each in iteration.recorded.maps for storage in each.storages]
    take_of = {swap: take for take, swap in enumerate(_swaps_of_takes(addresses))}
    return SwapTableColumns(
        op_hashes=list(map(op_hash, (op.name for op in trace.ops), iteration.recorded.with_grad)),
        block=[blocks[s] if old else 0 for s, old in zip(storages, is_old, strict=True)],
        ordinal=[ordinal for _, ordinal in known],
        bytes=[iteration.recorded.absent_bytes.get(s, trace.storages[s].size_bytes) for s in storages],
        again=[again for again, _ in known],
        storage=[index[swap.storage] for swap in swaps],
        out_after=[swap.out_after % ops for swap in swaps],
        free_by=[swap.free_by % ops for swap in swaps],
        in_start=[swap.in_start % ops for swap in swaps],
        take=[take_of[number] + 1 if swap.returns else 0 for number, swap in enumerate(swaps, 1)],
        map_op=[op for op, _ in mapped],
        map_storage=[index[storage] for _, storage in mapped],
    )


def remake_columns(iteration: CarriedOut, swaps: Sequence[Swap], addresses: AddressPlan) -> RemakeTableColumns:
    """Return the columns for the drops of an iteration with remakings and `swaps`, which has these addresses."""
    index = {storage: i for i, storage in enumerate(_leaving(iteration, swaps))}
    drops = iteration.drops
    carried = _carried(iteration, swaps, addresses)
    takes = _takes(iteration, addresses)
    return RemakeTableColumns(
        repeats=[repeated + 1 for repeated in iteration.repeats] if drops else [],
        storage=[index[drop.storage] for drop in drops],
        after=[drop.after for drop in drops],
        before=[drop.before for drop in drops],
        take=[0 if drop.back is None else takes[iteration.recorded.blocks[drop.back]] + 1 for drop in drops],
        kept=list(iteration.recorded.kept),
        carried=list(carried),
        last_take=list(carried.values()),
    )


def _carried(iteration: CarriedOut, swaps: Sequence[Swap], addresses: AddressPlan) -> dict[int, int]:
    """Return, by the number of its allocation, the last take of each dropped storage that outlives the iteration."""
    trace, blocks = iteration.recorded.trace, iteration.recorded.blocks
    allocations = _allocations(iteration)
    last = _takes(iteration, addresses)
    for take, swap in enumerate(_swaps_of_takes(addresses)):
        if swap:
            last[blocks[swaps[swap - 1].storage]] = take
    dropped = {drop.original: allocations[blocks[drop.storage]] for drop in reversed(iteration.drops)}
    return {
        dropped[original][1]: last[blocks[stay]]
        for original, stay in iteration.last.items()
        if original in dropped and trace.outlives(trace.storages[stay])
    }


def _leaving(iteration: CarriedOut, swaps: Sequence[Swap]) -> list[int]:
    """Return the storages that are swapped, dropped or mapped: the rows of the columns about storages."""
    mapped = {storage for each in iteration.recorded.maps for storage in each.storages}
    return sorted({swap.storage for swap in swaps} | {drop.storage for drop in iteration.drops} | mapped)


def _takes(iteration: CarriedOut, addresses: AddressPlan) -> dict[int, int]:
    """Return the take of each block's allocation."""
    by_number = (take for take, swap in enumerate(_swaps_of_takes(addresses)) if not swap)
    return dict(zip(_allocations(iteration), by_number, strict=True))


def _swaps_of_takes(addresses: AddressPlan) -> list[int]:
    """Return the swap that each take of an iteration ends, counted from 1; 0 for an allocation."""
    swaps = addresses.columns["swap"]
    return swaps[: len(swaps) // addresses.iterations]


def _allocations(iteration: CarriedOut) -> dict[int, tuple[int, int]]:
    """Return, by block, 1 more than the op that runs again and allocates it, or 0, and its number among those alike."""
    iterations = iteration.recorded.iterations
    born = iterations.size > 0
    blocks = iterations.block[born][: iterations.first_count].tolist()
    again = iterations.again[born].tolist() if len(iterations.again) else [0] * len(blocks)
    return dict(zip(blocks, _numbered(again[: len(blocks)]), strict=True))


def _numbered(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Return each key with how often it came before: 0, 5, 0 become (0, 0), (5, 0), (0, 1)."""
    counts: dict[int, int] = {}
    found = []
    for key in keys:
        counts[key] = counts.get(key, -1) + 1
        found.append((key, counts[key]))
    return found
