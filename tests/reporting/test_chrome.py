import json

import pytest
from hypothesis import given, settings

from memfit.reporting.chrome import to_chrome
from memfit.simulate import simulate
from swap_builder import MACHINES, plans


@given(plans(), MACHINES)
@settings(max_examples=50)
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
