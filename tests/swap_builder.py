"""Random swaps for a trace's gaps, and machines to judge them on."""

from __future__ import annotations

from hypothesis import strategies as st

from memfit.ir import Plan, Swap, Trace
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import latest_free_by
from memfit.planning.lifetimes import Gap, gaps
from trace_builder import traces

MACHINES = st.builds(
    lambda out, into, latency, both: Machine("m", Link.affine(latency, out), Link.affine(latency / 2, into), both),
    st.integers(1, 40000),
    st.integers(1, 40000),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([1.0, 0.5]),
)
SIZES = st.integers(1, 40)


def plan_of(trace: Trace, *swaps: Swap, budget_bytes: int = 2**60) -> Plan:
    return Plan(trace.signature, len(trace.ops), "test", "m", budget_bytes, swaps)


@st.composite
def swaps_of(draw: st.DrawFn, trace: Trace, gap: Gap) -> Swap:
    before = gap.before + len(trace.ops) * gap.cyclic
    out_after = draw(st.integers(gap.after, min(before - 1, len(trace.ops) - 1)))
    free_by = draw(st.integers(out_after + 1, latest_free_by(trace, gap.storage, before, returns=gap.returns)))
    in_start = draw(st.integers(free_by, before)) if gap.returns else before
    return Swap(gap.storage, gap.size_bytes, out_after, free_by, in_start, before, gap.cyclic, gap.returns)


@st.composite
def plans(draw: st.DrawFn, **options: object) -> tuple[Trace, Plan]:
    trace = draw(traces(sizes=SIZES, **options))
    found = gaps(trace)
    chosen = draw(st.lists(st.sampled_from(found), unique=True, max_size=6)) if found else []
    return trace, plan_of(trace, *(draw(swaps_of(trace, gap)) for gap in chosen))
