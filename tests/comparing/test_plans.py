from dataclasses import replace

import pytest

from memfit.comparing.planners import Asked, find_planner, plan_by
from memfit.comparing.plans import report_plan
from memfit.ir import Swap
from memfit.machine import Link, Machine
from memfit.planning.joint.judged import judged
from memfit.reporting.plans import to_text
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from swap_builder import plan_of
from trace_builder import TraceBuilder

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 3000))


def five_ops():
    builder = TraceBuilder()
    weight = builder.before(10)
    for used in ([weight], [], [], [], [weight]):
        builder.op("aten::mm", reads=used, duration_us=10.0)
    return builder.build()


PLAN = plan_of(five_ops(), Swap(0, 10, 0, 2, 3, 4, False))


def test_a_report_names_what_waits():
    trace = five_ops()
    figures = report_plan(trace, judged(trace, LINK, PLAN))
    assert (figures.swaps, figures.bytes_out, figures.bytes_in) == (1, 10, 10)
    assert [(s.op, s.direction, s.duration_us) for s in figures.largest_stalls] == [(4, "in", 20.0)]
    assert "op 4 aten::mm waits 20.0 us for storage 0 (10 B) to come in" in to_text(figures)
    assert "+40.00 % on" in to_text(figures)
    assert (figures.again_us, figures.stall_us, figures.recomputes, figures.bound_us) == (0.0, 20.0, 0, None)
    assert "recomputed" not in to_text(figures) and "bound" not in to_text(figures)


SLOW = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))


def test_a_report_tells_re_runs_from_waits_and_the_plan_from_its_bound():
    trace, _ = layers(4)
    found = plan_by("memfit", Asked(trace, SLOW, int(load_bytes(trace).max()) * 3 // 5, 0.1))
    figures = report_plan(trace, judged(trace, SLOW, found.plan), found.bound_us)
    sizes = [trace.storages[one.storage].size_bytes for one in found.plan.recomputes]
    assert figures.recomputes == len(sizes) > 0 and figures.bytes_recomputed == sum(sizes)
    assert figures.reruns >= figures.recomputes and figures.again_us > 0
    assert figures.iteration_us == pytest.approx(figures.compute_us + figures.again_us + figures.stall_us)
    assert figures.compute_us == pytest.approx(sum(op.duration_us for op in trace.ops))
    assert figures.overhead == pytest.approx(figures.iteration_us / figures.compute_us - 1)
    assert 0 < figures.bound_us <= figures.iteration_us - figures.compute_us + 1e-3
    text = to_text(replace(figures, compute_us=100.0, bound_us=7.0, overhead=0.12))
    assert f"{figures.recomputes} recomputes" in text and f"by {figures.reruns} runs of ops" in text
    assert "bound      +7.00 %: no such plan adds less; this one adds 5.00 points more" in text


def test_what_waits_is_named_by_the_numbers_of_the_recorded_trace():
    trace, _ = layers(4)
    budget = int(load_bytes(trace).max()) * 3 // 5
    plan = find_planner("swap-convolutions")(trace, SLOW, budget)
    found = judged(trace, SLOW, plan)
    figures = report_plan(trace, found)
    assert plan.recomputes and plan.swaps and figures.largest_stalls
    for stall in figures.largest_stalls:
        assert trace.ops[stall.op].name == stall.name
        assert trace.storages[stall.storage].size_bytes == stall.size_bytes
        made = [i for i, op in enumerate(found.made.op_of) if op == stall.op]
        assert any(found.made.runs_again[i] == stall.runs_again for i in made)
    others = replace(found, made=replace(found.made, storage_of=tuple(s + 100 for s in found.made.storage_of)))
    renamed = [stall.storage for stall in report_plan(trace, others).largest_stalls]
    assert renamed == [stall.storage + 100 for stall in figures.largest_stalls]
    (stall, *_) = figures.largest_stalls
    assert "(again) waits" in to_text(replace(figures, largest_stalls=(replace(stall, runs_again=True),)))
