"""Joint plans with addresses: asked again with less where the placements need more than the budget."""

from dataclasses import replace

import pytest

from memfit.errors import BudgetError
from memfit.machine import Link, Machine
from memfit.planning.joint import place
from memfit.planning.joint.place import plan_jointly_with_addresses
from memfit.planning.joint.plan import plan_jointly
from memfit.planning.joint.program import Moves
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers

SLOW = Machine("slow", Link.affine(0.0, 1e6), Link.affine(0.0, 1e6))
TRACE = layers(4)[0]
BUDGET = int(load_bytes(TRACE).max()) * 3 // 4


@pytest.fixture
def holes(monkeypatch):
    """Placements that need this many bytes more than they do, and the limits that were asked for."""
    limits, more = [], [0]

    def planner(trace, machine, limit_bytes, **options):
        limits.append(limit_bytes)
        return plan_jointly(trace, machine, limit_bytes, **options)

    placed = place.with_footprint

    def with_holes(trace, plan, **options):
        found = placed(trace, plan, **options)
        return replace(found, footprint_bytes=found.footprint_bytes + more[0])

    monkeypatch.setattr(place, "plan_jointly", planner)
    monkeypatch.setattr(place, "with_footprint", with_holes)
    return limits, more


def test_a_plan_that_fits_with_addresses_is_taken_at_once(holes):
    found = plan_jointly_with_addresses(TRACE, SLOW, BUDGET, effort=0.1)
    assert holes[0] == [BUDGET] and 0 < found.swaps.plan.footprint_bytes <= BUDGET
    assert found.added_us == plan_jointly(TRACE, SLOW, BUDGET, effort=0.1).added_us


def test_holes_are_made_up_for_by_a_lower_limit_and_the_bound_is_that_of_the_budget(holes):
    limits, more = holes
    more[0] = 30
    found = plan_jointly_with_addresses(TRACE, SLOW, BUDGET, moves=Moves.RECOMPUTE, effort=0.1)
    assert len(limits) > 1 and limits[1] < BUDGET
    assert found.swaps.plan.footprint_bytes <= BUDGET == found.swaps.plan.budget_bytes == found.bound.budget_bytes
    assert found.recomputes and not found.swaps.plan.swaps
    assert found.bound == plan_jointly(TRACE, SLOW, BUDGET, moves=Moves.RECOMPUTE, effort=0.1).bound


def test_holes_that_no_limit_makes_up_for_are_an_error(holes):
    holes[1][0] = BUDGET
    with pytest.raises(BudgetError, match="no addresses within") as error:
        plan_jointly_with_addresses(TRACE, SLOW, BUDGET, effort=0.1)
    assert error.value.required_bytes > BUDGET


def test_a_budget_that_no_plan_meets_is_named_as_it_was_asked(holes):
    with pytest.raises(BudgetError, match="budget of 100 B"):
        plan_jointly_with_addresses(TRACE, SLOW, 100, effort=0.1)


@pytest.mark.parametrize("hole_bytes", [100, BUDGET])
def test_where_re_runs_leave_holes_a_joint_plan_is_not_slower_than_swaps_alone(monkeypatch, hole_bytes):
    """With as much less it would be dearer than swaps, or there would be none."""
    placed = place.with_footprint

    def with_holes(trace, plan, **options):
        found = placed(trace, plan, **options)
        has_re_runs = len(trace.ops) > len(TRACE.ops)
        return replace(found, footprint_bytes=found.footprint_bytes + (hole_bytes if has_re_runs else 0))

    monkeypatch.setattr(place, "with_footprint", with_holes)
    link = Link.affine(0.0, 200.0)
    swaps = plan_jointly_with_addresses(TRACE, Machine("m", link, link), BUDGET, moves=Moves.SWAP, effort=0.1)
    joint = plan_jointly_with_addresses(TRACE, Machine("m", link, link), BUDGET, effort=0.1)
    assert joint.added_us == swaps.added_us and not joint.recomputes
    assert plan_jointly(TRACE, Machine("m", link, link), BUDGET, effort=0.1).added_us < swaps.added_us
