"""Swap plans on synthetic networks: every policy's added time, and how long simulating and planning take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated, Any

from benchmarks.common.result import Result, Row, Table
from benchmarks.common.synthetic import convolutions, decoder
from benchmarks.common.timing import in_turn, timed
from benchmarks.offline import _policies
from memfit.baselines.policies import POLICIES
from memfit.ir import Trace
from memfit.machine import profile
from memfit.planning.autoswap import Thresholds, candidates, plan_under_budget
from memfit.simulate import Simulator, load_bytes

NETWORKS: dict[str, Callable[[], Trace]] = {"decoder": decoder, "convolutions": convolutions}
SHARES = (90, 75, 60, 45)
MACHINE = profile("pcie4")
_KEPT = ("policy", "budget_bytes", "overhead", "seconds")  # of a cell


def compare(name: str) -> tuple[Row, Table]:
    """Return the figures of one network, and a table of all policies."""
    trace = NETWORKS[name]()
    found = _policies.compare(name, trace, MACHINE, SHARES, tuple(POLICIES))
    cells = [{key: value for key, value in asdict(cell).items() if key in _KEPT} for cell in found.cells]
    network = {"network": name, "ops": len(trace.ops), "peak_bytes": found.unswapped_bytes, "cells": cells}
    return network, _policies.table(found, len(trace.ops), SHARES, {})


def speed() -> Row:
    """Return how long simulations (median) and a plan take on a trace of about 10,000 ops."""
    trace = decoder(layers=209)
    peak = int(load_bytes(trace).max())
    thresholds = Thresholds(most=2000)
    found, planning = timed(lambda: plan_under_budget(trace, MACHINE, peak * 7 // 10, thresholds=thresholds))
    simulator, swaps = Simulator(trace, MACHINE), found.plan.swaps[:1000]
    columns = simulator.columns(swaps)
    ways = {
        "simulation": lambda: timed(lambda: simulator.run(columns))[1],
        "timeline": lambda: timed(lambda: simulator.timeline(swaps))[1],
    }
    return {
        "ops": len(trace.ops),
        "candidates": len(candidates(trace, thresholds)),
        "swaps": len(swaps),
        "overhead": found.timeline.overhead,
        "planning_seconds": round(planning, 2),
        **{f"{name}_ms": round(1000 * median(times), 3) for name, times in in_turn(ways, 21).items()},
    }


def table(figures: dict[str, Any]) -> Table:
    """Return how long planning and simulating took, beside what they may take."""
    speed = figures["speed"]
    ops = f"{speed['ops']:,} ops"
    rows = [
        [f"planning {ops}, {speed['candidates']:,} candidates", f"{speed['planning_seconds']:.1f} s", "5 s"],
        [f"simulating {ops}, {speed['swaps']:,} swaps", f"{speed['simulation_ms']:.2f} ms", "1 ms"],
    ]
    return Table("Speed", ["", "took", "bar"], rows)


def run(*, networks: Annotated[Sequence[str], {"choices": list(NETWORKS)}] = tuple(NETWORKS)) -> Iterator[Result]:
    """Compare the policies on each network, and time a large one."""
    found = [compare(name) for name in networks]
    figures = {"machine": MACHINE.name, "networks": [network for network, _ in found], "speed": speed()}
    yield Result("swapping", figures, [*(each for _, each in found), table(figures)])
