import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.errors import BudgetError, InputError
from memfit.ir import Handover, Plan, Trace
from memfit.machine import Link, Machine
from memfit.planning.autoswap.search import plan_under_budget
from memfit.planning.handing_over import hand_over, without_handovers
from memfit.planning.joint.again import corrected
from memfit.planning.joint.plan import _Search, plan_jointly, soon_planner
from memfit.planning.joint.program import Moves
from memfit.planning.joint.solver import LinearProgram
from memfit.simulate import load_bytes
from memfit.validate_plan import check_plan
from planning.joint.test_transformed import assert_same_values, layers
from swap_builder import MACHINES
from trace_builder import TraceBuilder, traces


@given(traces(max_ops=12), MACHINES, st.data())
def test_a_joint_plan_is_valid_keeps_the_values_and_is_not_below_its_bound(trace, machine, data):
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    budget = data.draw(st.integers(1, peak))
    try:
        plan = plan_jointly(trace, machine, budget, effort=0.02)
    except BudgetError:
        return
    assert isinstance(plan.swaps.plan, Plan) and check_plan(plan.transformed.trace, plan.swaps.plan) is None
    assert plan.swaps.timeline.peak_bytes <= budget
    assert_same_values(corrected(trace), plan.transformed)
    assert plan.added_us >= plan.bound.added_us - 1e-3 * max(1.0, plan.bound.added_us)


@given(traces(max_ops=12), MACHINES, st.data())
def test_a_plan_that_is_wanted_soon_is_valid_at_each_budget_and_exists_where_swaps_alone_do(trace, machine, data):
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    planner = soon_planner(trace, machine)
    for budget in data.draw(st.lists(st.integers(1, peak), min_size=1, max_size=3)):
        try:
            plan = planner(budget)
        except BudgetError:
            with pytest.raises(BudgetError):
                plan_under_budget(corrected(trace), machine, budget, effort=0.02)
            continue
        assert isinstance(plan.swaps.plan, Plan) and check_plan(plan.transformed.trace, plan.swaps.plan) is None
        assert plan.swaps.timeline.peak_bytes <= budget
        assert_same_values(corrected(trace), plan.transformed)


def test_a_plan_that_is_wanted_soon_takes_what_the_link_asks_for_at_a_smaller_budget_too():
    trace, _ = layers(4)
    slow, fast = (Machine("m", Link.affine(0.0, us), Link.affine(0.0, us)) for us in (1_000_000.0, 1e-3))
    planner = soon_planner(trace, slow)
    for budget in (360, 330):
        assert planner(budget).recomputes and planner(budget).overhead < 1
    swapping = soon_planner(trace, fast)(330)
    assert not swapping.recomputes and swapping.swaps.plan.swaps


def test_layers_are_made_again_where_the_link_is_slow():
    link = Link.affine(0.0, 1_000_000.0)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1)
    assert plan.recomputes and plan.overhead < 1
    assert plan.added_us == pytest.approx(sum(op.duration_us for op in plan.transformed.trace.ops) - plan.compute_us)


def test_swaps_do_where_the_link_is_fast():
    link = Link.affine(0.0, 1e-3)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("fast", link, link), 330, effort=0.1)
    assert not plan.recomputes and plan.swaps.plan.swaps


def test_a_budget_without_a_plan_is_refused():
    trace, _ = layers(4)
    with pytest.raises(BudgetError):
        plan_jointly(trace, Machine("m", Link.affine(0.0, 1.0), Link.affine(0.0, 1.0)), 100)


def test_second_runs_take_the_time_that_is_said():
    link = Link.affine(0.0, 1_000_000.0)
    trace, _ = layers(4)
    quick = [op.duration_us / 4 for op in trace.ops]
    plain = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1)
    plan = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1, again_us=quick)
    again = [
        op.duration_us for op, is_again in zip(plan.transformed.trace.ops, plan.transformed.runs_again, strict=True)
        if is_again
    ]  # fmt: skip
    assert again and plan.added_us == pytest.approx(sum(again)) and plan.added_us < plain.added_us / 2
    assert plan.compute_us == plain.compute_us and plan.bound.added_us <= plan.added_us * (1 + 1e-6)


def test_times_of_second_runs_that_do_not_fit_the_trace_are_refused():
    trace, _ = layers(2)
    with pytest.raises(InputError, match="second runs"):
        plan_jointly(trace, Machine("m", Link.affine(0.0, 1.0), Link.affine(0.0, 1.0)), 300, again_us=[1.0])


def test_without_a_program_there_is_a_plan_and_no_bound():
    link = Link.affine(0.0, 1_000_000.0)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1, most_ops=0)
    assert plan.recomputes and plan.swaps.timeline.peak_bytes <= 330
    assert plan.bound.added_us == 0 and not plan.bound.shares


def test_the_same_question_has_the_same_answer():
    link = Link.affine(0.0, 0.01)
    trace, _ = layers(6)
    one, other = (plan_jointly(trace, Machine("m", link, link), 330, effort=0.1) for _ in range(2))
    assert one.recomputes == other.recomputes and one.swaps.plan == other.swaps.plan


@pytest.mark.long
@pytest.mark.parametrize(("less", "more"), [(1.0, 2.0), pytest.param(2.0, 3.5, marks=pytest.mark.slow)])
def test_more_effort_is_never_worse(less, more):
    link = Link.affine(0.0, 2e4)
    trace, _ = layers(10)
    machine, budget = Machine("m", link, link), int(load_bytes(trace).max()) * 2 // 5
    first, second = (plan_jointly(trace, machine, budget, effort=effort) for effort in (less, more))
    assert second.added_us <= first.added_us


def test_handovers_make_no_plan_worse(monkeypatch):
    """A search that finds nothing with them ends with the plan that it finds without them."""
    link = Link.affine(0.0, 1_000_000.0)
    machine = Machine("slow", link, link)
    handed = hand_over(activated_layers(4), 0).trace
    without = plan_jointly(without_handovers(handed), machine, 330, effort=0.1)
    assert without.recomputes and plan_jointly(handed, machine, 330, effort=0.1).added_us <= without.added_us

    search = _Search._best_of_runs
    monkeypatch.setattr(_Search, "_best_of_runs", lambda self: None if self.values.trace.handovers else search(self))
    plan = plan_jointly(handed, machine, 330, effort=0.1)
    assert plan.choice == without.choice and plan.added_us == without.added_us
    assert plan.swaps.timeline.peak_bytes <= without.swaps.timeline.peak_bytes


def activated_layers(count: int) -> Trace:
    """Products whose activations take their places, and are read in reverse by the backward part."""
    builder = TraceBuilder()
    saved, handovers = [builder.before(64)], []
    for op in range(1, 2 * count, 2):
        (y,) = builder.op("aten::mm", reads=[saved[-1]], outputs=[64], duration_us=5.0)
        saved += builder.op("aten::tanh", reads=[y], outputs=[64])
        builder.free(y)
        handovers.append(Handover(op, y, saved[-1]))
    for each in reversed(saved[1:]):
        builder.op("aten::mm", reads=[each], scratch=[64])
        builder.free(each)
    return builder.build(handovers=tuple(handovers))


def test_with_swaps_alone_nothing_runs_again():
    link = Link.affine(0.0, 1e-3)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("fast", link, link), 330, moves=Moves.SWAP, effort=0.1)
    assert not plan.recomputes and plan.swaps.plan.swaps


def test_a_solver_that_finds_nothing_is_no_reason_not_to_plan(monkeypatch):
    monkeypatch.setattr(LinearProgram, "solve", lambda *_, **__: None)
    link = Link.affine(0.0, 1_000_000.0)
    trace, _ = layers(4)
    plan = plan_jointly(trace, Machine("slow", link, link), 330, effort=0.1)
    assert plan.recomputes and plan.bound.added_us == 0
