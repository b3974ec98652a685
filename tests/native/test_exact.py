"""The exact search: every rule it prunes by leaves the optimum in."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from memfit import _native
from planning.packing.instances import brute_force, tables

RULES = ("dominance", "suffixes", "twins", "split")


def smallest(lifetimes, period, switches):
    rules = _native.Rules()
    for name, switch in zip(RULES, switches, strict=True):
        setattr(rules, name, switch)
    return _native.smallest_footprint(
        lower=lifetimes.lower,
        upper=lifetimes.upper,
        size_bytes=lifetimes.size,
        offset_bytes=lifetimes.offset,
        period=period or 0,
        rules=rules,
    )


@given(st.data(), st.one_of(st.none(), st.integers(4, 12)), st.booleans())
def test_no_rule_prunes_the_optimum(data, period, fixed):
    lifetimes = data.draw(tables(max_count=6, period=period, fixed=fixed))
    if period:
        lifetimes.upper[:] = lifetimes.upper.clip(max=lifetimes.lower + period)
    found = {smallest(lifetimes, period, switches) for switches in product([False, True], repeat=len(RULES))}
    assert found == {brute_force(lifetimes, period)}


@given(tables(max_count=9))
def test_larger_tables_agree_with_and_without_rules(lifetimes):
    found = {smallest(lifetimes, None, switches) for switches in ((True,) * 4, (False, True, False, False))}
    assert len(found) == 1
