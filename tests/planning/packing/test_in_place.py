"""What may share bytes across an op, and what may not."""

from __future__ import annotations

import pytest
from hypothesis import given

from memfit.ir import Category
from memfit.planning.lifetimes import live_bytes
from memfit.planning.packing import group_in_place, lifetimes_of, pack
from trace_builder import TraceBuilder, traces


def chain(name="aten::relu", *, sizes=(64, 64), category=Category.ACTIVATION, late_free=False, read_again=False):
    """x = load(); y = op(x); free x; use(y)."""
    builder = TraceBuilder()
    (x,) = builder.op("load", outputs=[sizes[0]], category=category)
    (y,) = builder.op(name, reads=[x], outputs=[sizes[1]])
    if read_again:
        builder.op("use", reads=[x])
    if late_free:
        builder.op("other")
    builder.free(x)
    builder.op("use", reads=[y])
    builder.free(y)
    return builder.build()


def rows(trace):
    return group_in_place(trace, enabled=True).row.tolist()


@pytest.mark.parametrize("name", ["aten::relu", "aten::add.Tensor", "aten::silu_backward.grad_input"])
def test_an_elementwise_output_takes_the_bytes_of_its_dying_input(name):
    trace = chain(name)
    grouped = group_in_place(trace, enabled=True)
    assert grouped.row.tolist() == [0, 0]
    assert (len(grouped.lifetimes), pack(grouped.lifetimes, alignment=1).footprint) == (1, 64)
    assert pack(lifetimes_of(trace), alignment=1).footprint == 128


def test_it_is_off_unless_asked_for():
    assert group_in_place(chain()).row.tolist() == [0, 1]


@pytest.mark.parametrize(
    "trace",
    [
        chain("aten::mm"),
        chain(sizes=(64, 32)),
        chain(category=Category.INPUT),
        chain(category=Category.PARAMETER),
        chain(late_free=True),
        chain(read_again=True),
    ],
)
def test_anything_else_keeps_bytes_of_its_own(trace):
    assert rows(trace) == [0, 1]


def test_storages_alive_before_the_iteration_are_not_reused():
    builder = TraceBuilder()
    x = builder.before(64, Category.ACTIVATION)
    builder.op("aten::relu", reads=[x], outputs=[64])
    builder.free(x)
    assert rows(builder.build()) == [0, 1]


def test_a_chain_of_ops_shares_one_lifetime():
    builder = TraceBuilder()
    (x,) = builder.op("load", outputs=[8])
    for _ in range(4):
        (y,) = builder.op("aten::exp", reads=[x], outputs=[8])
        builder.free(x)
        x = y
    assert rows(builder.build()) == [0] * 5


def test_two_outputs_cannot_take_the_same_bytes():
    builder = TraceBuilder()
    (x,) = builder.op("load", outputs=[8])
    builder.op("aten::exp", reads=[x], outputs=[8, 8])
    builder.free(x)
    assert rows(builder.build()) == [0, 1, 2]


@given(traces())
def test_the_bound_of_a_trace_is_its_peak_of_live_bytes(trace):
    packing = pack(lifetimes_of(trace), alignment=trace.alignment, effort=0.01)
    assert packing.peak_live == live_bytes(trace, aligned=True).max()
