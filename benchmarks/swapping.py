"""Swap plans on synthetic networks: every policy's added time, and how long simulating and planning take."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

from common import save, show
from synthetic import convolutions, decoder

from memfit.baselines.policies import POLICIES
from memfit.comparing.policies import compare_policies
from memfit.ir import Trace
from memfit.machine import profile
from memfit.planning.autoswap import Thresholds, candidates, plan_under_budget
from memfit.reporting.policies import PolicyCell
from memfit.simulate import Simulator, load_bytes
from memfit.units import format_share

NETWORKS = {"decoder": decoder, "convolutions": convolutions}
SHARES = (90, 75, 60, 45)
MACHINE = profile("pcie4")


def added(cell: PolicyCell) -> str:
    """Return the added time of a cell, or a dash where there is no plan."""
    return "-" if cell.overhead is None else format_share(cell.overhead)


def compare(name: str, trace: Trace) -> dict[str, Any]:
    """Print the table of one network and return its figures."""
    peak = int(load_bytes(trace).max())
    budgets = [peak * share // 100 for share in SHARES]
    comparison = compare_policies(name, trace, MACHINE, budgets, tuple(POLICIES))
    rows = [
        [policy, *(added(cell) for cell in comparison.cells if cell.policy == policy)] for policy in comparison.policies
    ]
    columns = ("policy", *(f"{share} %" for share in SHARES))
    show(f"{name}: {len(trace.ops)} ops, {peak / 2**30:.2f} GiB, added time on {MACHINE.name}", columns, rows)
    cells = [
        {"policy": cell.policy, "budget_bytes": cell.budget_bytes, "overhead": cell.overhead, "seconds": cell.seconds}
        for cell in comparison.cells
    ]
    return {"network": name, "ops": len(trace.ops), "peak_bytes": peak, "cells": cells}


def speed() -> dict[str, Any]:
    """Return the time of a simulation and of a plan on a trace of about 10,000 ops."""
    trace = decoder(layers=209)
    peak = int(load_bytes(trace).max())
    thresholds = Thresholds(most=2000)
    begin = perf_counter()
    found = plan_under_budget(trace, MACHINE, peak * 7 // 10, thresholds=thresholds)
    planning = perf_counter() - begin
    simulator, swaps = Simulator(trace, MACHINE), found.plan.swaps[:1000]
    columns = simulator.columns(swaps)
    return {
        "ops": len(trace.ops),
        "candidates": len(candidates(trace, thresholds)),
        "swaps": len(swaps),
        "overhead": found.timeline.overhead,
        "planning_seconds": round(planning, 2),
        "simulation_ms": round(1000 * typical(lambda: simulator.run(columns)), 3),
        "timeline_ms": round(1000 * typical(lambda: simulator.timeline(swaps)), 3),
    }


def typical(call: Any, times: int = 21) -> float:
    """Return the median seconds of some calls."""
    seconds = []
    for _ in range(times):
        begin = perf_counter()
        call()
        seconds.append(perf_counter() - begin)
    return median(seconds)


def main() -> None:
    """Print the tables and write results/swapping.json."""
    networks = [compare(name, build()) for name, build in NETWORKS.items()]
    figures = speed()
    show("speed", tuple(figures), [list(figures.values())])
    save("swapping", {"machine": MACHINE.name, "networks": networks, "speed": figures})


if __name__ == "__main__":
    main()
