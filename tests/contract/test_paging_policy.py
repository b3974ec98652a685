"""What every policy of managed memory promises."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memfit.baselines.paging import PAGING
from memfit.baselines.policies import OPTIONAL, POLICIES
from memfit.baselines.recomputing import RECOMPUTE_POLICIES
from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.machine import profile
from memfit.simulate import load_bytes
from swap_builder import MACHINES
from trace_builder import TraceBuilder, traces

SIZES = st.sampled_from([0, 40, 1 << 16, 3 << 20])
policies = pytest.mark.parametrize("name", PAGING)


@policies
@given(trace=traces(sizes=SIZES, alignments=st.just(512)), machine=MACHINES, share=st.floats(0, 1.1))
def test_a_run_is_within_the_budget_or_refused(name, trace, machine, share):
    budget = int(share * load_bytes(trace).max())
    try:
        run = PAGING[name](trace, machine, budget)
    except BudgetError as error:
        assert error.required_bytes > budget
        assert "try: " in str(error)
        return
    assert (run.policy, run.budget_bytes) == (name, budget)
    assert run.peak_bytes <= budget
    assert run.iteration_us >= run.compute_us - 1e-6 * max(run.compute_us, 1.0)
    assert min(run.bytes_in, run.bytes_out, run.faults) >= 0


def pinned_until_scratch() -> Trace:
    """What stays where it is has gone before an op needs as much."""
    builder = TraceBuilder(alignment=512)
    (stays,) = builder.op(outputs=[3 << 20])
    builder.pin(stays)
    builder.op()
    builder.free(stays)
    builder.op(scratch=[3 << 20])
    return builder.build()


@policies
@given(trace=traces(sizes=SIZES, alignments=st.just(512)), machine=MACHINES)
@example(trace=pinned_until_scratch(), machine=profile("uvm"))
def test_what_fits_anyway_moves_nothing(name, trace, machine):
    try:
        run = PAGING[name](trace, machine, int(load_bytes(trace).max()) + (2 << 20))
    except BudgetError:
        pytest.fail("it fits")
    persistent = all(s.born_before == trace.outlives(s) for s in trace.storages)  # the next iteration has no new inputs
    if persistent:
        assert (run.bytes_in, run.bytes_out) == (0, 0)


@policies
@given(trace=traces(sizes=SIZES, alignments=st.just(512)), machine=MACHINES, share=st.floats(0.3, 1))
def test_the_same_question_has_the_same_answer(name, trace, machine, share):
    def answer():
        try:
            return PAGING[name](trace, machine, int(share * load_bytes(trace).max()))
        except BudgetError as error:
            return str(error)

    assert answer() == answer()


def test_no_two_policies_have_one_name():
    assert not {*PAGING} & {*POLICIES, *OPTIONAL, *RECOMPUTE_POLICIES}
