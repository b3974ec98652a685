import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import added_us, arrange
from memfit.planning.joint.columns import KEPT, PASSING, REMADE, SWAPPED, JointColumns
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from trace_builder import traces

FAST = Machine("fast", Link.affine(0.0, 1e-6), Link.affine(0.0, 1e-6))
SLOW = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))


def columns_of(trace, again_us=None):
    return JointColumns.of(Values.of(corrected(trace), again_us), candidates(trace, ANY_GAP))


def carried_out(columns, found):
    """The remakings of a choice, and the trace in which they are done."""
    remade = [gap for gap, mode in zip(columns.gaps, found.modes, strict=True) if mode in (REMADE, PASSING)]
    passing = [gap for gap, mode in zip(columns.gaps, found.modes, strict=True) if mode == PASSING]
    recomputes = arrange(columns.values, remade, passing)
    return remade, recomputes, with_recomputes(columns.values, recomputes)


@settings(max_examples=300)
@given(traces(max_ops=16), st.data())
def test_the_time_and_the_bytes_of_remakings_are_those_of_the_trace_with_them(trace, data):
    columns = columns_of(trace)
    modes = [data.draw(st.sampled_from((KEPT, REMADE, PASSING))) if us < 1e18 else KEPT for us in columns.remaking_us]
    found = columns.search(modes, SLOW, 0, effort=0, may_swap=False)
    remade, recomputes, made = carried_out(columns, found)
    if found.over_bytes == float("inf"):  # something is lost
        assert len(recomputes) < len(remade)
        return
    assert len(recomputes) == len(remade)
    assert found.again_us == pytest.approx(added_us(columns.values, recomputes))
    assert found.worst_bytes == load_bytes(made.trace).max()
    returns = {(gap.storage, gap.after): op for gap, op in zip(columns.gaps, found.returns, strict=True)}
    assert all(returns[one.storage, one.after] == one.before for one in recomputes)
