"""What is held after its last use is dropped for good: nothing runs for it, and it can be made until it is freed."""

from dataclasses import replace

import pytest
from hypothesis import given

from memfit.comparing.explaining.carried import carry_out
from memfit.comparing.explaining.plan import explain_plan
from memfit.comparing.explaining.storages import explain_storages
from memfit.comparing.plans import report_plan
from memfit.errors import BudgetError
from memfit.ir import Recompute
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.as_plan import as_plan
from memfit.planning.joint.judged import judged
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import Moves, time_bound
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.reporting.explain import to_text as explained
from memfit.reporting.explain_storage import to_text as explained_storage
from memfit.reporting.plans import to_text as reported
from memfit.reporting.show import print_text
from memfit.validate_joint import JointPromise, check_joint, check_recomputes
from trace_builder import TraceBuilder, traces

MACHINE = Machine("m", Link.affine(0.0, 1000.0), Link.affine(0.0, 1000.0))
BUDGET = 8 + 64 + 100
"""What the peak needs without the storage that is held."""


def holding(*, frees_source=False, overwrites=False, reads_again=False):
    """x, and one made from it that is held during the peak though no op uses it again; then the iteration goes on."""
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64], duration_us=10.0)
    (held,) = builder.op("aten::relu", reads=[x], outputs=[64], duration_us=10.0)
    builder.op("aten::sum", reads=[held])
    if overwrites:
        builder.op("aten::add_", reads=[weight], writes=[weight])
    if frees_source:
        builder.op("aten::sum", reads=[x])
        builder.free(x)
    builder.free(*builder.op("aten::mm", reads=[weight], outputs=[100]))
    if reads_again:
        builder.op("aten::sum", reads=[held])
    builder.op("aten::mm", reads=[weight])
    builder.free(held)
    builder.op("aten::mm", reads=[weight] if frees_source else [weight, x])
    return builder.build(), held


def of(storage, recomputes):
    (found,) = [one for one in recomputes if one.storage == storage]
    return found


@pytest.mark.parametrize("moves", [Moves.RECOMPUTE, Moves.JOINT])
def test_a_plan_drops_what_is_held_and_runs_nothing_for_it(moves):
    trace, held = holding()
    plan = plan_jointly(trace, MACHINE, BUDGET, moves=moves)
    assert plan.added_us == 0.0 == time_bound(trace, MACHINE, BUDGET, moves=moves).added_us
    assert of(held, plan.recomputes) == Recompute(held, 2, 5, (1,), returns=False)
    assert not any(plan.transformed.runs_again)
    found = judged(trace, MACHINE, as_plan(trace, plan))
    assert found.timeline.iteration_us == sum(op.duration_us for op in trace.ops)


def test_what_it_is_made_from_may_be_freed_if_that_can_be_made_again():
    trace, held = holding(frees_source=True)
    (gap,) = [gap for gap in candidates(trace, ANY_GAP) if gap.storage == held and not gap.returns]
    (one,) = arrange(Values.of(trace), [gap])
    assert one.ops == (0, 1) and not one.returns and check_recomputes(trace, [one]) is None


def test_it_stays_if_what_it_is_made_from_is_lost_before_it_is_freed():
    trace, held = holding(frees_source=True, overwrites=True)
    (gap,) = [gap for gap in candidates(trace, ANY_GAP) if gap.storage == held and not gap.returns]
    assert arrange(Values.of(trace), [gap]) == []
    with pytest.raises(BudgetError):
        plan_jointly(trace, MACHINE, BUDGET - 64, moves=Moves.RECOMPUTE)
    assert not time_bound(trace, MACHINE, BUDGET - 64, moves=Moves.RECOMPUTE).is_feasible
    wrong = check_recomputes(trace, [Recompute(held, gap.after, gap.before, (0, 1), returns=False)])
    assert wrong is not None and "storage 0 is gone" in str(wrong)


def test_a_drop_for_good_of_what_is_used_again_or_made_by_other_ops_is_refused():
    trace, held = holding(reads_again=True)
    used = check_recomputes(trace, [Recompute(held, 2, 6, (1,), returns=False)])
    assert used is not None and "op 4 uses it" in str(used)
    trace, held = holding()
    other = check_recomputes(trace, [Recompute(held, 2, 5, (0,), returns=False)])
    assert other is not None and "do not make it" in str(other)


def test_what_was_dropped_for_good_returns_if_another_is_made_from_it():
    builder = TraceBuilder()
    weight = builder.before(8)
    (held,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    (made,) = builder.op("aten::relu", reads=[held], outputs=[64])
    builder.free(*builder.op("aten::mm", reads=[weight], outputs=[100]))
    builder.op("aten::sum", reads=[made])
    builder.op("aten::mm", reads=[weight])
    builder.free(held, made)
    builder.op("aten::mm", reads=[weight])
    trace = builder.build()
    gaps = [gap for gap in candidates(trace, ANY_GAP) if gap.storage == held or gap.storage == made and gap.returns]
    found = arrange(Values.of(trace), gaps)
    assert found == [Recompute(held, 1, 3, (0,)), Recompute(made, 1, 3, (1,))]
    assert check_joint(trace, with_recomputes(Values.of(trace), found)) is None


def test_a_storage_is_gone_before_it_is_freed_if_it_is_dropped_for_good_and_only_then():
    trace, held = holding()
    plain, dropped = (
        with_recomputes(Values.of(trace), made) for made in ([], [Recompute(held, 2, 5, (1,), returns=False)])
    )
    assert check_joint(trace, plain) is None and check_joint(trace, dropped) is None
    for made in (replace(plain, for_good=frozenset({held})), replace(dropped, for_good=frozenset())):
        found = check_joint(trace, made)
        assert found is not None and found.promise is JointPromise.FREES


def test_reports_tell_a_drop_for_good_from_a_remaking(capsys):
    trace, held = holding()
    plan = as_plan(trace, plan_jointly(trace, MACHINE, BUDGET, moves=Moves.RECOMPUTE))
    text = reported(report_plan(trace, judged(trace, MACHINE, plan)))
    assert "1 recomputes" in text and "by 0 runs of ops, 64 B dropped for good" in text
    figures = explain_plan(trace, MACHINE, BUDGET, plan=plan, effort=0.02)
    assert (figures.plan.remakings, figures.plan.reruns) == (0, 0)
    print_text(explained(figures))
    print_text(explained_storage(explain_storages(carry_out(trace, MACHINE, plan), f"#{held}")))
    told = " ".join(capsys.readouterr().out.split())
    assert "1 drops for good of 64 B" in told and "nothing runs" in told


@given(traces(max_ops=14))
def test_whatever_is_dropped_for_good_can_be_made_until_it_is_freed(trace):
    trace = corrected(trace)
    gone = [gap for gap in candidates(trace, ANY_GAP) if not gap.cyclic and not gap.returns]
    found = arrange(Values.of(trace), gone)
    assert check_recomputes(trace, found) is None
    made = with_recomputes(Values.of(trace), found)
    assert check_joint(trace, made) is None and not any(made.runs_again)
