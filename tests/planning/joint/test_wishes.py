"""What a user wants of some storages: the patterns that name them, and plans that honour it."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.comparing.planners import OURS, Asked, plan_by
from memfit.errors import BudgetError, UsageError
from memfit.ir import Phase
from memfit.machine import Link, Machine
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.columns import JointColumns
from memfit.planning.joint.judged import judged
from memfit.planning.joint.program import time_bound
from memfit.planning.joint.values import Values
from memfit.planning.joint.wishes import Wishes, require_possible, wishes_of, without_swaps
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers
from swap_builder import MACHINES, SIZES
from trace_builder import TraceBuilder, traces

TRACE, SAVED = layers(4)
PEAK = int(load_bytes(TRACE).max())
SLOW = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))
FAST = Machine("fast", Link.affine(0.0, 1e-3), Link.affine(0.0, 1e-3))


def named():
    builder = TraceBuilder()
    weight = builder.before(8, source="src/model.py:4")
    (x,) = builder.op("aten::relu", reads=[weight], outputs=[8], source="src/model.py:40")
    (y,) = builder.op("aten::mm.default", reads=[x], outputs=[8], source="lib/other.py:40")
    builder.op("aten::relu_", reads=[y], writes=[y], source="src/model.py:41")
    return builder.build(), weight, x, y


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("#2", {2}),
        ("aten::relu*", {1}),  # not what an op changes in place
        ("aten::mm.default", {2}),
        ("*::*", {1, 2}),
        ("model.py:4", {0}),
        ("model.py:*", {0, 1}),
        ("model.py", {0, 1}),
        ("src/model.py:40", {1}),
        ("*.py:40", {1, 2}),
        ("*/other.py:4?", {2}),
    ],
)
def test_a_pattern_names_storages(pattern, found):
    trace = named()[0]
    assert wishes_of(trace, keep=[pattern]).keep == found
    assert wishes_of(trace, swap=[pattern]) == Wishes(swap=frozenset(found))


@pytest.mark.parametrize("pattern", ["#3", "#", "#x", "#-1", "#²", "aten::relu_", "odel.py:40", "@layers", ""])
def test_a_pattern_that_names_nothing_is_an_error(pattern):
    with pytest.raises(UsageError, match="no storage of this trace is named so"):
        wishes_of(named()[0], keep=[pattern])


def test_a_storage_has_one_wish_only():
    trace = named()[0]
    assert wishes_of(trace, keep=["#1", "aten::relu*"]).keep == {1}
    with pytest.raises(UsageError, match=r"--keep #1 and --swap \*\.py:40 contradict each other") as error:
        wishes_of(trace, keep=["#1"], swap=["*.py:40"])
    assert "storage #1 (8 B)" in str(error.value)


def test_what_cannot_be_made_again_is_not_to_be_recomputed():
    with pytest.raises(UsageError, match="nothing that it names can be made again"):
        wishes_of(TRACE, recompute=["#0"])
    assert wishes_of(TRACE, recompute=["#0", f"#{SAVED[2]}"]).recompute == {0, SAVED[2]}


def test_what_may_not_be_swapped_is_in_use_all_its_life():
    trace = without_swaps(TRACE, {0, SAVED[2]})
    left = {gap.storage for gap in candidates(trace, ANY_GAP)}
    assert left == {gap.storage for gap in candidates(TRACE, ANY_GAP)} - {0, SAVED[2]}
    assert load_bytes(trace).tolist() == load_bytes(TRACE).tolist()
    assert without_swaps(TRACE, ()) is TRACE


def assert_honoured(trace, found, wishes):
    result = found.made
    swapped = {result.storage_of[swap.storage] for swap in found.swaps.swaps}
    assert not swapped & wishes.never_swapped
    assert not {one.storage for one in found.plan.recomputes} & wishes.never_remade


@given(traces(sizes=SIZES), MACHINES, st.sampled_from(sorted(OURS)), st.floats(0.3, 1), st.data())
def test_wishes_are_honoured_or_the_budget_is_refused(trace, machine, name, share, data):
    budget = int(share * load_bytes(trace).max())
    assume(budget > 0)
    of_each = data.draw(st.lists(st.integers(0, 3), min_size=len(trace.storages), max_size=len(trace.storages)))
    wishes = Wishes(*(frozenset(s for s, kind in enumerate(of_each) if kind == which) for which in (1, 2, 3)))
    asked = Asked(trace, machine, budget, 0.02, data.draw(st.booleans()), wishes)
    try:
        found = plan_by(name, asked)
    except BudgetError as error:
        assert error.required_bytes is None or error.required_bytes > budget
        return
    require_possible(trace, budget, wishes)
    result = judged(trace, machine, found.plan)
    assert_honoured(trace, result, wishes)
    assert found.bound_us <= result.added_us + 1e-3 * max(1.0, result.added_us)


@pytest.mark.parametrize("machine", [SLOW, FAST], ids=lambda machine: machine.name)
def test_layers_are_planned_as_is_wished(machine):
    saved = SAVED[1:-1]
    plans = {}
    for wish in ("none", "swap", "recompute"):
        wishes = Wishes(**{wish: frozenset(saved)}) if wish != "none" else Wishes()
        found = plan_by("memfit", Asked(TRACE, machine, PEAK * 3 // 4, 0.1, wishes=wishes))
        result = judged(TRACE, machine, found.plan)
        assert_honoured(TRACE, result, wishes)
        plans[wish] = result
    assert {one.storage for one in plans["recompute"].plan.recomputes} & set(saved)
    assert {plans["swap"].made.storage_of[s.storage] for s in plans["swap"].plan.swaps} & set(saved)
    added = {wish: result.added_us for wish, result in plans.items()}
    assert added["none"] <= min(added.values()) + 1e-6
    forced = "swap" if machine is SLOW else "recompute"
    assert added[forced] > added["none"] + 1e-6


def test_a_wish_makes_no_bound_lower():
    wishes = Wishes(keep=frozenset({SAVED[1]}), swap=frozenset({SAVED[2]}), recompute=frozenset({SAVED[3]}))
    for machine in (SLOW, FAST):
        plain = time_bound(TRACE, machine, PEAK * 3 // 4)
        wished = time_bound(TRACE, machine, PEAK * 3 // 4, wishes=wishes)
        assert wished.added_us >= plain.added_us * (1 - 1e-6) and wished.wishes == wishes
        shares = {share.gap.storage: share for share in wished.shares}
        assert SAVED[1] not in shares and shares[SAVED[2]].recompute == 0 == shares[SAVED[3]].swap


def test_the_search_may_not_do_what_is_not_wished():
    swapped, remade = SAVED[1:3]
    columns = JointColumns.of(
        Values.of(TRACE), candidates(TRACE, ANY_GAP), Wishes(swap=frozenset({swapped}), recompute=frozenset({remade}))
    )
    gaps = {gap.storage: number for number, gap in enumerate(columns.gaps) if gap.storage in SAVED[1:3]}
    assert set(gaps) == {swapped, remade}
    assert np.isinf(columns.remaking_us[gaps[swapped]]) and columns.may_leave[gaps[swapped]]
    assert np.isfinite(columns.remaking_us[gaps[remade]]) and not columns.may_leave[gaps[remade]]


def test_an_impossible_budget_says_that_wishes_are_why():
    builder = TraceBuilder()
    x, y = builder.op("aten::mm", outputs=[100, 50])
    builder.free(*builder.op("aten::bmm", outputs=[100], source="m.py:7"))
    builder.op("aten::sum", reads=[x, y], phase=Phase.BACKWARD)
    trace = builder.build()
    assert judged(trace, FAST, plan_by("memfit", Asked(trace, FAST, 200)).plan).plan.swaps
    asked = Asked(trace, FAST, 200, wishes=wishes_of(trace, keep=["#0", "#1"]))
    with pytest.raises(BudgetError, match="200 B cannot be met with these wishes") as error:
        plan_by("memfit", asked)
    assert error.value.required_bytes == 250 and error.value.source == "m.py:7"
    assert "aten::bmm at m.py:7 needs 250 bytes; without wishes it would be 150" in str(error.value)
    assert "at least 250 B (250 bytes), or fewer of --keep" in str(error.value)


def test_a_planner_that_finds_nothing_says_that_wishes_may_be_why():
    wishes = Wishes(recompute=frozenset(SAVED[1:]), keep=frozenset({SAVED[0]}))
    asked = Asked(TRACE, FAST, PEAK * 3 // 4, wishes=wishes)
    with pytest.raises(BudgetError, match="was found with these wishes"):
        plan_by("swap", asked)


def test_other_systems_policies_take_no_wishes():
    with pytest.raises(UsageError, match="the policy dtr takes no wishes"):
        plan_by("dtr", Asked(TRACE, FAST, PEAK, wishes=Wishes(keep=frozenset({0}))))
