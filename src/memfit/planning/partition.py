"""Which values of a compiled forward pass are kept for its backward pass, and which are made again there.

A kept value may have to be copied to the tier and back; one that is made again costs the time of its op, and needs the
op's inputs. `cheapest` finds the choice that costs least in all: a closure problem (Picard, "Maximal closure of a
graph", Management Science 22(11), 1976), but that no two values are made again one from the other. Backward passes go
the other way: what the later one is made from would have to wait for its own turn, and take room as if it were kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memfit.planning.joint.solver import LinearProgram


@dataclass(frozen=True)
class Speeds:
    """What decides: speeds of a machine, rounded so that one that is measured again decides alike.

    Attributes:
        flops: Operations a second of a matrix product in float32.
        memory_bytes_per_s: Bytes that an elementwise op reads and writes a second.
        tier_bytes_per_s: Bytes that go to the tier and come back a second.
    """

    flops: float
    memory_bytes_per_s: float
    tier_bytes_per_s: float

    def rounded(self) -> Speeds:
        """Return the speeds, each the nearest power of two."""
        return Speeds(*(2.0 ** round(math.log2(each)) for each in self.as_tuple()))

    def as_tuple(self) -> tuple[float, float, float]:
        """Return the three numbers."""
        return self.flops, self.memory_bytes_per_s, self.tier_bytes_per_s


@dataclass(frozen=True)
class Value:
    """A value of the forward pass. Times are in microseconds; infinity: it cannot be had that way.

    Attributes:
        inputs: The values it is made from, by index; each comes before it.
        kept_us: What keeping it costs; 0 for what is there anyway, such as a parameter.
        again_us: What its op costs.
        is_wanted: Whether the backward pass reads it.
        is_joined: Whether it is made in each kernel that reads it, and takes no room.
    """

    inputs: tuple[int, ...]
    kept_us: float
    again_us: float
    is_wanted: bool
    is_joined: bool = False


def cheapest(values: Sequence[Value]) -> frozenset[int]:
    """Return the values that are made again, by index, in a choice that costs least.

    Every value that is wanted is kept or made again, and so is each input of one that is made again. Of two values that
    take room, if one is made from the other by none or by what is joined, one at most is made again.

    Raises ValueError if some value that is wanted cannot be had.
    """
    program = LinearProgram()
    there = [program.column(cost=value.kept_us if value.kept_us < math.inf else 0.0) for value in values]
    again = [_made_again(program, value) for value in values]
    for i, (value, sources) in enumerate(zip(values, room_takers(values), strict=True)):
        program.row([(again[i], 1.0), (there[i], -1.0)], upper=0.0)
        if value.kept_us == math.inf:
            program.row([(again[i], 1.0), (there[i], -1.0)], lower=0.0)
        if value.is_wanted:
            program.row([(there[i], 1.0)], lower=1.0)
        for each in value.inputs:
            program.row([(again[i], 1.0), (there[each], -1.0)], upper=0.0)
        if not value.is_joined and value.again_us < math.inf:
            for each in sources:
                program.row([(again[i], 1.0), (again[each], 1.0)], upper=1.0)
    found = program.whole()
    if found is None:
        raise ValueError("a value is wanted that can be neither kept nor made again")
    return frozenset(i for i, column in enumerate(again) if found[column] > 0.5)


def room_takers(values: Sequence[Value]) -> list[frozenset[int]]:
    """Return, for each value, those it is made from that take room: its inputs, and of what is joined, likewise."""
    found: list[frozenset[int]] = []
    for value in values:
        near = (found[each] if values[each].is_joined else frozenset({each}) for each in value.inputs)
        found.append(frozenset(each for some in near for each in some if values[each].again_us < math.inf))
    return found


def _made_again(program: LinearProgram, value: Value) -> int:
    """Add the column that says whether a value is made again, instead of being kept."""
    if value.again_us == math.inf:
        return program.column(upper=0.0)
    return program.column(cost=value.again_us - (value.kept_us if value.kept_us < math.inf else 0.0))
