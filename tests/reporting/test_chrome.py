import json
from dataclasses import replace

import pytest
from hypothesis import given

from memfit.comparing.planners import find_planner
from memfit.machine import Link, Machine
from memfit.planning.joint.judged import judged
from memfit.reporting.chrome import to_chrome
from memfit.simulate import load_bytes, simulate
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, plans

SLOW = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))


@given(plans(), MACHINES)
def test_a_chrome_trace_has_every_op_wait_and_copy(trace_and_plan, machine):
    trace, plan = trace_and_plan
    timeline = simulate(trace, machine, plan)
    events = json.loads(to_chrome(trace, plan, {"iteration": timeline}))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(trace.ops) + len(timeline.stalls) + len(timeline.copies)
    assert all(span["dur"] >= 0 for span in spans)
    assert sum(event["ph"] == "C" for event in events) == len(trace.ops)
    waits = [span for span in spans if span["name"].startswith("wait")]
    assert sum(span["dur"] for span in waits) == pytest.approx(timeline.stall_us, abs=1e-3)


def test_ops_that_run_again_say_so_and_numbers_are_those_of_the_recorded_trace():
    trace, _ = layers(4)
    plan = find_planner("swap-convolutions")(trace, SLOW, int(load_bytes(trace).max()) * 3 // 5)
    found = judged(trace, SLOW, plan)
    made = replace(found.made, storage_of=tuple(s + 100 for s in found.made.storage_of))  # to see that it is used
    text = to_chrome(made.trace, found.swaps, {"iteration": found.timeline}, made)
    spans = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    ops = [span for span in spans if "phase" in span["args"]]
    assert [span["args"]["op"] for span in ops] == list(found.made.op_of)
    assert [span["name"].endswith(" (again)") for span in ops] == list(found.made.runs_again)
    assert any(found.made.runs_again) and ops[0]["name"] == trace.ops[0].name
    copied = {made.storage_of[swap.storage] for swap in plan.swaps}
    names = {f"storage {storage}" for storage in copied}
    assert copied and {span["name"] for span in spans if "bytes" in span["args"]} == names
    waits = {span["name"].split(" (")[0] for span in spans if span["name"].startswith("wait")}
    assert waits and waits <= {f"wait for {name}" for name in names}
