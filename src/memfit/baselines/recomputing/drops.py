"""What the policies choose from: activations that wait for the backward part, and the traces in which some are made
again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from memfit.baselines.policies.policy import all_gaps, is_convolution
from memfit.ir import Phase, Recompute, Trace, Transformed
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.recipes import recipe_of
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.planning.lifetimes import Gap
from memfit.simulate import load_bytes

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "mv", "dot", "embedding"})
_CHEAP = ("norm", "relu", "gelu", "silu", "tanh", "sigmoid", "elu", "swish", "threshold", "hardtanh", "softplus",
          "dropout", "pool", "softmax")  # fmt: skip
_TRIED = 40


def is_dear(name: str) -> bool:
    """Return whether an op of this name is a convolution, a product of matrices or an attention: a checkpoint."""
    base = name.rpartition("::")[2].partition(".")[0]
    return is_convolution(name) or base in _PRODUCTS or "attention" in base


def is_cheap(name: str) -> bool:
    """Return whether an op of this name is a norm, an activation, a pooling or a dropout."""
    return not is_dear(name) and any(word in name.lower() for word in _CHEAP)


@dataclass(frozen=True, slots=True)
class Droppable:
    """A gap whose storage can be made again at its end.

    Attributes:
        gap: The gap.
        writer: The op that wrote what the storage holds last.
        makers: All ops that wrote it, one into what the other left.
        us: Microseconds of what runs again, if all that lives then is there.
        needs: The numbers of the values that it is made from.
        value: The number of its value.
    """

    gap: Gap
    writer: int
    makers: tuple[int, ...]
    us: float
    needs: tuple[int, ...]
    value: int


@dataclass(frozen=True, slots=True)
class Drops:
    """Remakings, the trace in which they are carried out, and the most bytes that it holds at once."""

    recomputes: tuple[Recompute, ...]
    made: Transformed
    peak_bytes: int

    @property
    def added_us(self) -> float:
        """The microseconds of what runs again."""
        ops = zip(self.made.trace.ops, self.made.runs_again, strict=True)
        return sum(op.duration_us for op, again in ops if again)


class Droppables:
    """The storages of a trace that may be dropped."""

    def __init__(self, trace: Trace) -> None:
        self.trace = corrected(trace)
        self.values = Values.of(self.trace)
        self.turn = turn_of(self.trace)
        found = (self._droppable(gap) for gap in all_gaps(self.trace) if gap.is_inner)
        self.all = sorted((each for each in found if each is not None), key=lambda each: (each.writer, each.value))
        self.waiting = [each for each in self.all if each.gap.after < self.turn <= each.gap.before]
        """Those from a last use in the forward part to the first in the backward part, in the order they are made."""

    def _droppable(self, gap: Gap) -> Droppable | None:
        value = self.values.before(gap.storage, gap.before)
        recipe = recipe_of(self.values, value, gap.before)
        writer = self.values.values[value].writer
        if recipe is None or writer is None:
            return None
        version = self.values.values[value].version
        earlier = (self.values.values[each].writer for each in self.values.of_storage[gap.storage][: version + 1])
        makers = tuple(op for op in earlier if op is not None)
        return Droppable(gap, writer, makers, recipe.us, recipe.needs, value)

    def carried_out(self, chosen: Iterable[Droppable], passing: Collection[Droppable] = ()) -> Drops:
        """Return the trace in which the chosen storages are dropped.

        Arguments:
            chosen: The storages to drop.
            passing: Those of them that are made anew for each use, and freed after it.
        """
        gaps = [each.gap for each in chosen]
        return self.of(arrange(self.values, gaps, {each.gap for each in passing}))

    def of(self, recomputes: Iterable[Recompute]) -> Drops:
        """Return the trace in which `recomputes` are carried out."""
        listed = tuple(recomputes)
        made = with_recomputes(self.values, listed)
        return Drops(listed, made, int(load_bytes(made.trace).max()))

    def is_checkpoint(self, each: Droppable) -> bool:
        """Return whether a dear op made it, perhaps with a cheap one in place after it."""
        return any(is_dear(self.trace.ops[op].name) for op in each.makers)

    def is_cheap(self, each: Droppable) -> bool:
        """Return whether cheap ops alone made it."""
        return all(is_cheap(self.trace.ops[op].name) for op in each.makers)


def turn_of(trace: Trace) -> int:
    """Return the first op of the backward part; one more than the last op if there is none."""
    backward = (index for index, op in enumerate(trace.ops) if op.phase is Phase.BACKWARD)
    return next(backward, len(trace.ops))


def counts(most: int) -> list[int]:
    """Return numbers from 0 to `most`, at most `_TRIED` + 1, to be tried: more drops are not always fewer bytes."""
    return sorted({most * step // _TRIED for step in range(_TRIED + 1)})


def gaps_within(made: Transformed, chosen: Iterable[Gap], last: int) -> list[Gap]:
    """Return the gaps of a trace with remakings that lie in `chosen` ones of the original trace with `last` + 1 ops.

    A storage that something is made from in its gap has two there. Of a dropped storage its other stays count.
    """
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for gap in chosen:
        spans[gap.storage].append((gap.after, gap.before + (last + 1) * gap.cyclic))
    return [gap for gap in all_gaps(made.trace) if _lies_in(made, gap, spans[made.storage_of[gap.storage]], last + 1)]


def _lies_in(made: Transformed, gap: Gap, spans: Sequence[tuple[int, int]], count: int) -> bool:
    after, before = (_time(made, op) for op in (gap.after, gap.before))
    before += count * gap.cyclic
    # One that runs over the end may begin in this iteration, and a part of it in the next.
    return any(begin <= after + shift and before + shift <= end for begin, end in spans for shift in (0, count))


def _time(made: Transformed, op: int) -> float:
    """Return the original op at this one's place; an op that runs again lies half an op before the next original."""
    if not made.runs_again[op]:
        return made.op_of[op]
    return next(made.op_of[at] for at in range(op, len(made.op_of)) if not made.runs_again[at]) - 0.5
