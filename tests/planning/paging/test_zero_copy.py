"""Ops that read over the link, again at each touch."""

from __future__ import annotations

import pytest

from memfit.machine import profile
from memfit.planning.paging import zero_copy
from trace_builder import TraceBuilder

MACHINE = profile("zerocopy")


def test_every_sweep_is_paid_and_nothing_stays():
    builder = TraceBuilder()
    a, b = builder.before(1 << 20), builder.before(1 << 10)
    builder.op("aten::mm", reads=[a, b], writes=[b], duration_us=1.0)
    builder.op("aten::sin", reads=[a], duration_us=1e6)
    found = zero_copy(builder.build(), MACHINE, MACHINE.faults, [a])
    assert found.bytes_in.tolist() == [8 << 20, 1 << 20] and found.bytes_out.tolist() == [0, 0]
    assert found.used_bytes.sum() == 0 and found.faults.sum() == 0
    assert found.op_us == pytest.approx([(8 << 20) / (25.2e3 * 0.87), 1e6], rel=0.01)


def test_a_convolution_reads_twice_and_what_is_written_goes_out_once():
    builder = TraceBuilder()
    a, b = builder.before(1000), builder.before(2000)
    builder.op("aten::conv2d", reads=[a], writes=[b])
    builder.op("aten::mm", reads=[a], writes=[b])
    found = zero_copy(builder.build(), MACHINE, MACHINE.faults, [a, b])
    assert found.bytes_in.tolist() == [2000, 8000] and found.bytes_out.tolist() == [2000, 2000]


def test_rows_cost_the_rows():
    builder = TraceBuilder()
    table, indices = builder.before(1 << 20), builder.before(8 * 16)
    builder.op("aten::embedding", reads=[table, indices], outputs=[16 * 64])
    found = zero_copy(builder.build(), MACHINE, MACHINE.faults, [table])
    assert found.bytes_in.tolist() == [16 * 64]
