"""The checker of maps: each promise broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.ir import Map, Plan, Recompute
from memfit.validate_maps import InvalidMapsError, MapPromise, check_maps, require_valid_maps
from trace_builder import TraceBuilder


def trace_of_three():
    """Op 0 reads the weight (0) and makes 1; op 1 reads both and makes 2, with scratch 3; op 2 writes 2."""
    builder = TraceBuilder(alignment=8)
    weight = builder.before(64)
    (a,) = builder.op("aten::relu", reads=[weight], outputs=[64])
    (b,) = builder.op("aten::mul", reads=[weight, a], outputs=[64], scratch=[16])
    builder.op("aten::add_", reads=[a], writes=[b])
    return builder.build()


TRACE = trace_of_three()
ALL = (Map(1, (0, 2, 3), 8), Map(2, (2,), 8))


def plan_of(*maps, recomputes=()):
    return Plan("s", 3, "test", "test", 0, (), maps=maps, recomputes=recomputes)


def test_inputs_outputs_and_scratch_may_be_mapped():
    assert check_maps(TRACE, plan_of(*ALL)) is None
    assert check_maps(TRACE, plan_of()) is None


@pytest.mark.parametrize(
    ("maps", "promise", "op"),
    [
        ([Map(3, (0,), 0)], MapPromise.OP, 3),
        ([Map(-1, (0,), 0)], MapPromise.OP, -1),
        ([Map(1, (0,), 0), Map(1, (1,), 0)], MapPromise.OP, 1),
        ([Map(1, (0,), 0), Map(0, (0,), 0)], MapPromise.OP, 0),
        ([Map(0, (2,), 0)], MapPromise.STORAGE, 0),
        ([Map(0, (9,), 0)], MapPromise.STORAGE, 0),
        ([Map(2, (3,), 0)], MapPromise.STORAGE, 2),
        ([Map(1, (), 0)], MapPromise.STORAGE, 1),
        ([Map(1, (1, 0), 0)], MapPromise.STORAGE, 1),
        ([Map(1, (0,), 7)], MapPromise.FRAMES, 1),
        ([Map(1, (0,), -8)], MapPromise.FRAMES, 1),
        ([Map(1, (2,), 0)], MapPromise.BORN, 2),
        ([Map(0, (1,), 0), Map(1, (1,), 0)], MapPromise.BORN, 2),
    ],
)
def test_a_broken_promise_is_named(maps, promise, op):
    violation = check_maps(TRACE, plan_of(*maps))
    assert violation is not None and (violation.promise, violation.op) == (promise, op)
    with pytest.raises(InvalidMapsError, match=str(promise)):
        require_valid_maps(TRACE, plan_of(*maps))


def test_what_is_mapped_is_not_made_again_and_what_maps_does_not_run_again():
    again = Recompute(1, 0, 2, (0,))
    assert check_maps(TRACE, plan_of(Map(1, (0,), 0), recomputes=(again,))) is None
    for maps, runs in ([Map(1, (1,), 0)], (0,)), ([Map(1, (0,), 0)], (0, 1)):
        violation = check_maps(TRACE, plan_of(*maps, recomputes=(replace(again, ops=runs),)))
        assert violation is not None and violation.promise is MapPromise.REMADE
