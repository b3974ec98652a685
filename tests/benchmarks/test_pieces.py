"""A trace whose large storages are cut into parts is a trace, with the same bytes and the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.offline.pieces import in_parts
from memfit.files import load_trace, save_trace
from memfit.planning.lifetimes import peak_live
from trace_builder import TraceBuilder, traces


def test_what_is_large_is_cut_and_what_changes_it_goes_by_parts():
    builder = TraceBuilder()
    small, large = builder.before(6), builder.before(80)
    (made,) = builder.op("aten::conv2d", reads=[small, large], outputs=[80], duration_us=5)
    builder.op("aten::relu_", reads=[made], writes=[made], duration_us=4)
    builder.op("aten::sum", reads=[made], outputs=[1])
    cut = in_parts(builder.build(), 10, 2)
    assert [s.size_bytes for s in cut.storages] == [6, 40, 40, 40, 40, 1]
    assert [(op.name, op.reads, op.duration_us) for op in cut.ops] == [
        ("aten::conv2d", (0, 1, 2), 5),
        ("aten::relu_", (3,), 2),
        ("aten::relu_", (4,), 2),
        ("aten::sum", (3, 4), 1),
    ]


@given(trace=traces(), least=st.integers(1, 64), parts=st.integers(1, 4))
def test_it_is_a_trace_of_the_same_bytes(tmp_path, trace, least, parts):
    cut = in_parts(trace, least, parts)
    save_trace(cut, tmp_path / "t")
    assert load_trace(tmp_path / "t") == cut  # which checks it in full
    assert sum(s.size_bytes for s in cut.storages) == sum(s.size_bytes for s in trace.storages)
    assert sum(op.duration_us for op in cut.ops) == pytest.approx(sum(op.duration_us for op in trace.ops))
    assert peak_live(cut)[0] == peak_live(trace)[0]
