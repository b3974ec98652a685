"""Patterns and the storages that they name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.planning.naming import storages_named
from trace_builder import TraceBuilder


@pytest.fixture
def trace():
    """Return five storages: a parameter, those of two layers, of one in a layer, and one without bytes."""
    builder = TraceBuilder()
    builder.before(4, source="net/model.py:3")
    builder.op("aten::conv2d", outputs=[8], source="net/model.py:12")
    builder.op("aten::mm.out", outputs=[8], source="net/model.py:120")
    builder.op("aten::relu_", outputs=[8], source="train.py:12")
    builder.op("aten::mm", outputs=[0], source="train.py:12")
    trace = builder.build()
    modules = ("", "Net.layers.3", "Net.layers.30", "Net.layers.3.act", "Net")
    storages = tuple(replace(s, module=m) for s, m in zip(trace.storages, modules, strict=True))
    return replace(trace, storages=storages)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("#0", [0]),
        ("#5", []),
        ("#x", []),
        ("@Net", [1, 2, 3]),
        ("@layers", [1, 2, 3]),
        ("@layers.3", [1, 3]),
        ("@Net.layers.3", [1, 3]),
        ("@layers.3*", [1, 2, 3]),
        ("@act", [3]),
        ("@a", []),
        ("@", []),
        ("@*", [1, 2, 3]),
        ("model.py:12", [1]),
        ("model.py", [0, 1, 2]),
        ("net/*", [0, 1, 2]),
        ("odel.py:12", []),
        ("aten::mm", [2]),
        ("mm.out", [2]),
        ("m*", [0, 1, 2]),
        ("relu_", [3]),
    ],
)
def test_a_pattern_names_storages(trace, pattern, named):
    assert storages_named(trace, pattern) == named
