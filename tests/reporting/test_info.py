import dataclasses
import io

import pytest
from rich.console import Console

from memfit.comparing.trace_info import describe_trace
from memfit.ir import Category, Demand
from memfit.reporting.info import to_text
from memfit.reporting.show import print_text
from trace_builder import TraceBuilder


def printed(info, width=200):
    out = io.StringIO()
    print_text(to_text(info), Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture
def info():
    builder = TraceBuilder(pinned_bytes=2048)
    ids = [builder.before(1024 * size, source="[bold]model.py:3") for size in range(1, 11)]
    builder.op("aten::mm", reads=ids, outputs=[512], source="model.py:8", duration_us=1200)
    builder.op("aten::relu", duration_us=250)
    return describe_trace(builder.build())


def test_every_figure_is_there_with_its_unit(info):
    text = printed(info)
    assert "2 in 1.45 ms, 11 storages" in text
    assert "55.5 KiB (56,832 bytes) live in op 0 aten::mm (forward, model.py:8)" in text
    assert "Minimum feasible budget: 57.5 KiB (58,880 bytes), set in the iteration by op 0 aten::mm" in text
    assert "and 2 smaller storages" in text
    assert "2.00 KiB  of others that cannot leave the arena then: pinned" in text
    assert "99.1 %" in text
    assert "250 us" in text and "op 0 aten::mm, next iteration" in text


def test_names_are_not_taken_for_markup(info):
    assert "[bold]model.py:3" in printed(info)


def test_a_narrow_terminal_loses_no_character(info):
    assert "…" not in printed(info, width=60)


def test_what_is_unknown_or_absent_is_said_or_left_out(info):
    minimum = dataclasses.replace(info.minimum, fixed_bytes=0, operand_count=8)
    text = printed(dataclasses.replace(info, script="", largest_gaps=(), minimum=minimum))
    assert "unknown" in text
    assert "Largest gaps" not in text and "pinned" not in text and "smaller storages" not in text


def test_paths_are_as_short_as_they_can_be_told_by(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    builder = TraceBuilder()
    for source in (f"{tmp_path}/own/model.py:1", "/usr/lib/python3/site-packages/lib/layer.py:2"):
        builder.op("aten::mm", outputs=[512], source=source)
    builder.op("aten::mm", outputs=[512], source="/srv/code/deep/er/net.py:3")
    text = printed(describe_trace(builder.build()))
    for short in (" own/model.py:1", " lib/layer.py:2", " .../er/net.py:3"):
        assert short in text
    assert str(tmp_path) not in text and "site-packages" not in text


def test_the_minimum_says_which_op_sets_it_and_what_it_does_not_cover(info):
    before = Demand("aten::linalg_qr", "model.py:1", 1 << 20, 1 << 20, 4096, 0)
    minimum = dataclasses.replace(info.minimum, budget_bytes=before.total_bytes, before=before)
    text = printed(dataclasses.replace(info, minimum=minimum))
    assert "set before the iteration by aten::linalg_qr at model.py:1" in text
    assert "The iteration itself needs 57.5 KiB (58,880 bytes), set by op 0 aten::mm" in text
    assert "Not covered: ops after the iteration" in text


def test_what_a_tier_leaves_of_a_category_is_shown_where_it_is_known(info):
    assert "in the tier" not in printed(info)
    builder = TraceBuilder()
    ids = [builder.before(size, Category.GRADIENT) for size in (1000, 3000, 500)]
    builder.op(reads=ids, outputs=[512])
    trace = builder.build()
    sizes = zip(trace.storages, (250, 750, 0, 0), strict=True)
    left = dataclasses.replace(trace, storages=tuple(dataclasses.replace(s, stored_bytes=n) for s, n in sizes))
    text = printed(describe_trace(left))
    assert "in the tier" in text and "x0.25" in next(line for line in text.splitlines() if "gradient" in line)
