"""Budgets in which a program's largest op does not fit, and the tiers for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import memfit
from memfit.planning.lifetimes import minimum_budget
from memfit.running.engine.tiers import TierSpec

LEAST = 1 << 20  # on a disk nothing is mapped in less


def budget_below(program: Callable[[int], object], share: float) -> int:
    """Return this share of the smallest budget in which `program`, which takes its steps, runs unmapped, in pages."""
    with memfit.session(None, "ram", device="cpu") as unlimited:
        trace = unlimited.record_span(lambda: program(3))
    return max(int(share * minimum_budget(trace)[0]) // 4096 * 4096, LEAST)


def tier_of(kind: str, folder: Callable[[str], Path]) -> TierSpec:
    """Return a tier of this kind, a disk's in a new folder."""
    return TierSpec("ram") if kind == "ram" else TierSpec("disk", str(folder("tier")))
