import json
from dataclasses import replace

from hypothesis import given

from memfit.comparing.trace_info import describe_trace
from memfit.ir import Category, Demand, Phase
from memfit.planning.lifetimes import live_bytes
from memfit.reporting.info import CategoryBytes, SourceBytes
from memfit.reporting.show import to_json
from trace_builder import TraceBuilder, traces


def small_trace():
    """Peaks at 1700 bytes in op 2, which also sets the minimum budget: operands 600, workspace 1000."""
    builder = TraceBuilder(alignment=64, pinned_bytes=11)
    weight = builder.before(100, source="model.py:3")
    (first,) = builder.op("aten::mm", reads=[weight], outputs=[400], source="model.py:8", duration_us=10)
    (second,) = builder.op("aten::relu", reads=[first], outputs=[200], source="model.py:9", duration_us=20)
    reads = [first, second]
    kind = {"phase": Phase.BACKWARD, "category": Category.GRADIENT}
    (grad,) = builder.op("aten::mm", reads=reads, outputs=[1000], source="model.py:8", duration_us=40, **kind)
    builder.free(first, second)
    builder.op("aten::add_", reads=[grad], writes=[weight], phase=Phase.OPTIMIZER, duration_us=80)
    builder.free(grad)
    return builder.build()


def test_the_numbers_of_a_small_trace():
    info = describe_trace(small_trace())
    assert (info.op_count, info.storage_count, info.duration_us) == (4, 4, 150)
    assert info.peak_bytes == 1700
    assert (info.peak_op.index, info.peak_op.name, info.peak_op.phase) == (2, "aten::mm", "backward")
    assert info.lower_bound_bytes == 128 + 448 + 256 + 1024
    assert (info.script, info.iteration, info.device, info.torch_version) == ("train.py", 2, "cpu", "2.13.0")


def test_what_is_live_at_the_peak_by_category_and_line():
    assert describe_trace(small_trace()).live_at_peak == (
        CategoryBytes("gradient", 1000, 1, (SourceBytes("model.py:8", 1000, 1),)),
        CategoryBytes("activation", 600, 2, (SourceBytes("model.py:8", 400, 1), SourceBytes("model.py:9", 200, 1))),
        CategoryBytes("parameter", 100, 1, (SourceBytes("model.py:3", 100, 1),)),
    )


def test_the_minimum_budget_names_its_op_and_operands():
    minimum = describe_trace(small_trace()).minimum
    assert minimum.budget_bytes == 448 + 256 + 1024 + 11
    assert (minimum.op.index, minimum.op.source) == (2, "model.py:8")
    assert (minimum.workspace_bytes, minimum.fixed_bytes, minimum.operand_count) == (1024, 11, 2)
    assert [(t.size_bytes, t.source) for t in minimum.largest_operands] == [
        (400, "model.py:8"),
        (200, "model.py:9"),
    ]


def test_gaps_come_with_their_storage_and_ops():
    (gap,) = describe_trace(small_trace()).largest_gaps
    assert (gap.tensor.category, gap.tensor.source) == ("parameter", "model.py:3")
    assert (gap.after.index, gap.before.index) == (0, 3)
    assert (gap.duration_us, gap.cyclic) == (60, False)


def test_long_lists_are_cut_to_the_largest():
    builder = TraceBuilder()
    ids = [builder.before(size, source=f"a.py:{size}") for size in range(1, 31)]
    builder.op(reads=ids)
    builder.op()
    info = describe_trace(builder.build())
    assert [s.size_bytes for s in info.live_at_peak[0].top_sources] == [30, 29, 28]
    assert [gap.tensor.size_bytes for gap in info.largest_gaps] == [30, 29, 28, 27, 26]
    assert [t.size_bytes for t in info.minimum.largest_operands] == list(range(30, 22, -1))
    assert info.minimum.operand_count == 30


@given(traces())
def test_categories_add_up_to_the_peak(trace):
    info = describe_trace(trace)
    assert sum(row.size_bytes for row in info.live_at_peak) == info.peak_bytes == live_bytes(trace).max()


def test_json_holds_the_fields_by_name():
    values = json.loads(to_json(describe_trace(small_trace())))
    assert values["peak_bytes"] == 1700
    assert values["minimum"]["op"]["name"] == "aten::mm"
    assert values["live_at_peak"][0]["top_sources"][0]["source"] == "model.py:8"


def test_what_ran_before_the_iteration_sets_the_minimum_if_it_needed_more():
    before = Demand("aten::linalg_qr", "model.py:1", 4000, 2000, 100, 10)
    minimum = describe_trace(replace(small_trace(), before=before)).minimum
    assert (minimum.budget_bytes, minimum.before) == (6110, before)
    assert minimum.iteration_bytes < 2000
    less = replace(before, operand_bytes=0, workspace_bytes=0)
    assert describe_trace(replace(small_trace(), before=less)).minimum.budget_bytes == minimum.iteration_bytes
