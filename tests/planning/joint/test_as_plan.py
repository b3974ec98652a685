"""A joint plan as an ordinary plan, saved, loaded and carried out; and plans that a file may hold and no trace has."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.errors import BudgetError, InputError
from memfit.files import load_plan, save_plan
from memfit.ir import Plan, Recompute
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import corrected
from memfit.planning.joint.arrange import arrange
from memfit.planning.joint.as_plan import as_plan, carried_out, swaps_alone
from memfit.planning.joint.judged import judged
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.simulate import load_bytes, simulate
from memfit.validate_joint import InvalidRemakingsError, check_joint
from memfit.validate_plan import InvalidSwapsError
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, plan_of
from trace_builder import TraceBuilder, traces

SLOW = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))
FAST = Machine("fast", Link.affine(0.0, 1e-3), Link.affine(0.0, 1e-3))


@given(traces(max_ops=12), MACHINES, st.data())
def test_a_plan_file_is_enough_to_carry_a_joint_plan_out(tmp_path_factory, trace, machine, data):
    peak = int(load_bytes(trace).max())
    assume(peak > 1)
    try:
        found = plan_jointly(trace, machine, data.draw(st.integers(1, peak)), effort=0.02)
    except BudgetError:
        return
    path = tmp_path_factory.mktemp("plan") / "p.json"
    save_plan(as_plan(trace, found), path)
    plan = load_plan(path)
    assert (plan.signature, plan.op_count, plan.policy) == (trace.signature, len(trace.ops), "memfit")
    result = judged(trace, machine, plan)
    assert result.timeline.iteration_us == pytest.approx(found.swaps.timeline.iteration_us)
    assert result.added_us == pytest.approx(found.added_us, abs=1e-3)
    assert result.timeline.peak_bytes <= plan.budget_bytes
    if plan.recomputes:
        assert result.made == found.transformed and result.swaps == found.swaps.plan


@given(st.data())
def test_recomputes_alone_are_carried_out_as_arranged(data):
    trace, saved = layers(4)
    found = [gap for gap in candidates(trace, ANY_GAP) if gap.storage in saved[1:]]
    values = Values.of(trace)
    recomputes = tuple(arrange(values, data.draw(st.lists(st.sampled_from(found), unique=True, min_size=1))))
    assert recomputes
    plan = replace(plan_of(trace), recomputes=recomputes)
    assert carried_out(trace, plan) == with_recomputes(values, recomputes)
    assert judged(trace, SLOW, plan).again_us > 0


@given(traces(max_ops=6))
def test_a_plan_without_recomputes_leaves_the_trace_as_it_is(trace):
    made = carried_out(trace, plan_of(trace))
    assert made.trace is trace and not any(made.runs_again)
    assert made.op_of == tuple(range(len(trace.ops))) and made.storage_of == tuple(range(len(trace.storages)))


def test_swaps_without_recomputes_are_of_the_traces_own_storages():
    builder = TraceBuilder()
    (saved,) = builder.op("aten::mm", outputs=[64], duration_us=5.0)
    builder.before(8)  # numbered after `saved`, and alive before it
    builder.free(*builder.op("aten::mm", outputs=[32]))
    builder.op("aten::mm", reads=[saved])
    trace = builder.build()
    plan = as_plan(trace, plan_jointly(trace, FAST, int(load_bytes(trace).max()) - 1, effort=0.02))
    assert not plan.recomputes and {swap.storage for swap in plan.swaps} == {saved}
    assert judged(trace, FAST, plan).timeline.peak_bytes <= plan.budget_bytes


def recomputing():
    trace, _ = layers(4)
    plan = as_plan(trace, plan_jointly(trace, SLOW, 330, effort=0.1))
    assert plan.recomputes
    return trace, plan


def test_what_a_joint_plan_adds_is_re_runs_and_waits():
    trace, plan = recomputing()
    result = judged(trace, SLOW, plan)
    assert result.compute_us == pytest.approx(sum(op.duration_us for op in trace.ops))
    assert result.again_us > 0
    assert result.added_us == pytest.approx(result.again_us + result.timeline.stall_us)
    assert result.overhead == pytest.approx(result.added_us / result.compute_us)


def test_the_swaps_alone_are_not_taken_for_the_traces_own():
    trace, plan = recomputing()
    with pytest.raises(InputError, match="recomputes are carried out"):
        simulate(trace, SLOW, plan)
    made = carried_out(trace, plan)
    assert swaps_alone(made, plan).signature == made.trace.signature != trace.signature


def test_a_plan_that_no_longer_fits_its_budget_is_refused():
    trace, plan = recomputing()
    with pytest.raises(InvalidSwapsError, match="over the budget of 10"):
        judged(trace, SLOW, replace(plan, budget_bytes=10))


def test_a_plan_for_another_trace_is_refused():
    trace, plan = recomputing()
    with pytest.raises(InputError, match="for another trace"):
        judged(replace(trace, signature="other"), SLOW, plan)


def test_a_remaking_of_another_value_is_refused():
    trace, saved = layers()
    (gap,) = (gap for gap in candidates(trace, ANY_GAP) if gap.storage == saved[2])
    (one,) = arrange(Values.of(trace), [gap])
    without_its_activation = replace(one, ops=one.ops[:-1])
    with pytest.raises(InvalidRemakingsError, match="reads other values"):
        judged(trace, SLOW, replace(plan_of(trace), recomputes=(without_its_activation,)))


ONE = Recompute(5, 9, 12, (1,))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"storage": 99}, "of storage 99, which the trace does not have"),
        ({"storage": -1}, "of storage -1"),
        ({"before": 99}, "from op 9 to op 99"),
        ({"after": 12}, "from op 12 to op 12"),
        ({"after": -1}, "from op -1"),
        ({"ops": (1, 12)}, r"runs ops \(1, 12\) again before op 12"),
        ({"ops": (-1,)}, r"runs ops \(-1,\)"),
        ({"ops": ()}, r"runs ops \(\)"),
        ({"storage": 4}, "drops storage 4 beyond its life"),
    ],
)
def test_numbers_that_the_trace_does_not_have_are_named(changes, says):
    trace = layers()[0]
    with pytest.raises(InvalidRemakingsError, match=says):
        carried_out(trace, replace(plan_of(trace), recomputes=(replace(ONE, **changes),)))


NUMBER = st.integers(-1, 16)
ANYTHING = st.builds(Recompute, NUMBER, NUMBER, NUMBER, st.lists(NUMBER, max_size=4).map(tuple))


@pytest.mark.long
@given(traces(max_ops=14), st.data())
def test_whatever_a_file_says_is_carried_out_or_refused(trace, data):
    lives = [(index, storage) for index, storage in enumerate(trace.storages) if storage.free - storage.alloc > 1]

    def living(draw):
        index, storage = draw(st.sampled_from(lives))
        after = draw(st.integers(storage.alloc, storage.free - 2))
        before = draw(st.integers(after + 1, storage.free - 1))
        ops = draw(st.lists(st.integers(0, before - 1), min_size=1, max_size=4))
        return Recompute(index, after, before, tuple(ops))

    some = st.composite(living)() | ANYTHING if lives else ANYTHING
    recomputes = tuple(data.draw(st.lists(some, max_size=3)))
    plan = Plan(trace.signature, len(trace.ops), "p", "m", 2**60, (), recomputes=recomputes)
    try:
        made = carried_out(trace, plan)
    except InvalidRemakingsError:
        return
    check_joint(corrected(trace), made)
