"""What a user wants of some storages: that they stay, or that they leave in one of the two ways only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from memfit.errors import BudgetError, UsageError
from memfit.ir import Op, Trace, align_up
from memfit.planning.autoswap.candidates import ANY_GAP, candidates, end_of
from memfit.planning.joint.again import corrected
from memfit.planning.joint.recipes import recipe_of
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap
from memfit.planning.naming import FORMS, storages_named
from memfit.simulate import load_bytes, sum_of_spans
from memfit.units import format_bytes


class Wish(StrEnum):
    """What may happen to a storage that is not in use: nothing, a swap, or a recompute."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Wishes:
    """Storages (their ids) of which a user wants something; a storage is in one of the sets at most.

    Attributes:
        keep: They stay.
        swap: They stay, or leave by copies.
        recompute: They stay, or are dropped and made again.
    """

    keep: frozenset[int] = frozenset()
    swap: frozenset[int] = frozenset()
    recompute: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.keep or self.swap or self.recompute)

    @property
    def never_swapped(self) -> frozenset[int]:
        """The storages that no copy may take away."""
        return self.keep | self.recompute

    @property
    def never_remade(self) -> frozenset[int]:
        """The storages that may not be dropped."""
        return self.keep | self.swap


NO_WISHES = Wishes()
_FEWER = "fewer of --keep, --swap and --recompute"


def wishes_of(
    trace: Trace, *, keep: Sequence[str] = (), swap: Sequence[str] = (), recompute: Sequence[str] = ()
) -> Wishes:
    """Find the storages that patterns name.

    Arguments:
        trace: The recorded iteration.
        keep: The patterns (`memfit.planning.naming`) of what stays.
        swap: The patterns of what may leave by copies only.
        recompute: The patterns of what may only be dropped and made again.

    Returns:
        The wishes.

    Raises:
        UsageError: A pattern names nothing, two of them contradict each other, or nothing that is to be recomputed
            can be.
    """
    named: dict[int, tuple[Wish, str]] = {}
    for wish, patterns in ((Wish.KEEP, keep), (Wish.SWAP, swap), (Wish.RECOMPUTE, recompute)):
        for pattern in patterns:
            for storage in _matching(trace, wish, pattern):
                earlier = named.setdefault(storage, (wish, pattern))
                if earlier[0] is not wish:
                    raise _contradiction(trace, storage, earlier, (wish, pattern))
    sets = {wish: frozenset(s for s, (own, _) in named.items() if own is wish) for wish in Wish}
    found = Wishes(sets[Wish.KEEP], sets[Wish.SWAP], sets[Wish.RECOMPUTE])
    if found.recompute and not any(_remakable(trace, found.recompute)):
        raise _not_remakable(recompute)
    return found


def without_swaps(trace: Trace, storages: Iterable[int]) -> Trace:
    """Return `trace` with `storages` in use at every op of their lives, so that no planner of swaps takes them away.

    Swaps of the trace that is returned are swaps of `trace`, with the same effect.
    """
    used: list[list[int]] = [[] for _ in trace.ops]
    for storage in sorted(storages):
        life = trace.storages[storage]
        for op in range(life.alloc, life.free):
            used[op].append(storage)
    if not any(used):
        return trace
    return replace(trace, ops=tuple(_using(op, more) for op, more in zip(trace.ops, used, strict=True)))


def require_possible(trace: Trace, budget_bytes: int, wishes: Wishes) -> None:
    """Raise BudgetError if no plan of any kind meets the budget with these wishes, and one might without them."""
    gaps = candidates(trace, ANY_GAP)
    held, _ = _least(trace, gaps)
    least, op = _least(trace, list(_allowed(trace, gaps, wishes)))
    if held <= budget_bytes < least:  # where not even `held` fits, the planner itself says so
        raise BudgetError(
            f"a budget of {format_bytes(budget_bytes)} cannot be met with these wishes",
            why=f"with all away that may leave, {trace.ops[op].name} at {trace.ops[op].source or 'an unknown line'} "
            f"needs {least} bytes; without wishes it would be {held}",
            remedy=f"use a budget of at least {format_bytes(least)} ({least} bytes), or {_FEWER}",
            required_bytes=least,
            op=trace.ops[op].name,
            source=trace.ops[op].source,
        )


def not_found(budget_bytes: int, error: BudgetError) -> BudgetError:
    """Return the error that with wishes the planner found nothing, which it says in `error` as if there were none."""
    return BudgetError(
        f"no plan within {format_bytes(budget_bytes)} was found with these wishes",
        why=error.why or error.what,
        remedy=f"allow more, or {_FEWER}",
        op=error.op,
        source=error.source,
    )


def _using(op: Op, more: list[int]) -> Op:
    return replace(op, reads=tuple(dict.fromkeys((*op.reads, *more)))) if more else op


def _matching(trace: Trace, wish: Wish, pattern: str) -> list[int]:
    found = storages_named(trace, pattern)
    if not found:
        raise UsageError(
            f"--{wish} {pattern}: no storage of this trace is named so",
            why=f"a pattern is {FORMS}",
            remedy="memfit info TRACE shows what there is",
        )
    return found


def _remakable(trace: Trace, storages: frozenset[int]) -> Iterator[Gap]:
    """Yield the gaps of `storages` at whose ends they can be made again."""
    values = Values.of(corrected(trace))
    for gap in candidates(trace, ANY_GAP):
        if gap.storage not in storages or not gap.is_inner:
            continue
        if recipe_of(values, values.before(gap.storage, gap.before), gap.before) is not None:
            yield gap


def _allowed(trace: Trace, gaps: list[Gap], wishes: Wishes) -> Iterator[Gap]:
    yield from (gap for gap in gaps if gap.storage not in wishes.never_swapped)
    if wishes.recompute:
        yield from _remakable(trace, wishes.recompute)


def _least(trace: Trace, gaps: list[Gap]) -> tuple[int, int]:
    """Return the most that an op holds with every gap of `gaps` in use, and that op."""
    spans = ((gap.after + 1, end_of(trace, gap), align_up(gap.size_bytes, trace.alignment)) for gap in gaps)
    held = load_bytes(trace) - sum_of_spans(spans, len(trace.ops))
    return int(held.max()), int(held.argmax())


def _contradiction(trace: Trace, storage: int, first: tuple[Wish, str], second: tuple[Wish, str]) -> UsageError:
    size = format_bytes(trace.storages[storage].size_bytes)
    return UsageError(
        f"--{first[0]} {first[1]} and --{second[0]} {second[1]} contradict each other",
        why=f"both name storage #{storage} ({size}), and each storage can have one wish only",
        remedy="make one of the patterns narrower, or leave it out",
    )


def _not_remakable(patterns: Sequence[str]) -> UsageError:
    return UsageError(
        f"--recompute {' '.join(patterns)}: nothing that it names can be made again",
        why="the ops that made it may not run again, or what they read is gone",
        remedy="leave it out, or name it with --swap or --keep",
    )
