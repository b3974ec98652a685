import dataclasses

import pytest

from memfit.ir import Access, Category, Phase, accesses, align_up
from trace_builder import TraceBuilder


def test_names_are_those_files_hold():
    assert [str(category) for category in Category] == [
        "parameter",
        "gradient",
        "optimizer state",
        "activation",
        "input",
        "scratch",
    ]
    assert [str(phase) for phase in Phase] == ["forward", "backward", "optimizer"]


def test_accesses_come_in_op_order_reads_before_writes():
    builder = TraceBuilder()
    weight = builder.before(4)
    (out,) = builder.op(reads=[weight], outputs=[4])
    builder.op(reads=[out, weight], writes=[weight])
    assert list(accesses(builder.build())) == [
        Access(0, weight, False),
        Access(0, out, True),
        Access(1, out, False),
        Access(1, weight, False),
        Access(1, weight, True),
    ]


def test_a_storage_recurs_only_if_alive_before_and_after():
    builder = TraceBuilder()
    builder.before(4)
    old_gradient = builder.before(4)
    (new_gradient,) = builder.op(outputs=[4])
    builder.free(old_gradient)
    trace = builder.build()
    by_id = trace.storages
    assert [trace.recurs(s) for s in by_id] == [True, False, False]
    assert [s.born_before for s in by_id] == [True, True, False]
    assert [trace.outlives(s) for s in by_id] == [True, False, True]
    assert by_id[new_gradient].free == len(trace.ops)


def test_values_are_immutable():
    trace = TraceBuilder().build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.ticks = 3
    with pytest.raises((AttributeError, TypeError)):
        trace.note = "slotted: no attribute is added by mistake"


@pytest.mark.parametrize(("size", "alignment", "aligned"), [(0, 64, 0), (1, 64, 64), (64, 64, 64), (65, 64, 128)])
def test_align_up(size, alignment, aligned):
    assert align_up(size, alignment) == aligned
