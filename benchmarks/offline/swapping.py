"""Swap plans on synthetic networks: every policy's added time, and how long simulating and planning take."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Any, TypedDict

from benchmarks.common.result import Result, Table
from benchmarks.common.synthetic import convolutions, decoder
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


class Speed(TypedDict):
    """How long it took to plan and to simulate, and what."""

    ops: int
    candidates: int
    swaps: int
    overhead: float
    planning_seconds: float
    simulation_ms: float
    timeline_ms: float


class Figures(TypedDict):
    """What the file holds."""

    machine: str
    networks: list[dict[str, Any]]
    speed: Speed


def compare(name: str) -> tuple[dict[str, Any], Table]:
    """Return the figures of one network, and a table of all policies."""
    trace = NETWORKS[name]()
    found = _policies.compare(name, trace, MACHINE, SHARES, tuple(POLICIES))
    cells = [{key: value for key, value in asdict(cell).items() if key in _KEPT} for cell in found.cells]
    network = {"network": name, "ops": len(trace.ops), "peak_bytes": found.unswapped_bytes, "cells": cells}
    return network, _policies.table(found, len(trace.ops), SHARES, {})


def speed() -> Speed:
    """Return the time of a simulation and of a plan on a trace of about 10,000 ops."""
    trace = decoder(layers=209)
    peak = int(load_bytes(trace).max())
    thresholds = Thresholds(most=2000)
    begin = perf_counter()
    found = plan_under_budget(trace, MACHINE, peak * 7 // 10, thresholds=thresholds)
    planning = perf_counter() - begin
    simulator, swaps = Simulator(trace, MACHINE), found.plan.swaps[:1000]
    columns = simulator.columns(swaps)
    return Speed(
        ops=len(trace.ops),
        candidates=len(candidates(trace, thresholds)),
        swaps=len(swaps),
        overhead=found.timeline.overhead,
        planning_seconds=round(planning, 2),
        simulation_ms=round(1000 * typical(lambda: simulator.run(columns)), 3),
        timeline_ms=round(1000 * typical(lambda: simulator.timeline(swaps)), 3),
    )


def typical(call: Callable[[], object], times: int = 21) -> float:
    """Return the median seconds of some calls."""
    seconds = []
    for _ in range(times):
        begin = perf_counter()
        call()
        seconds.append(perf_counter() - begin)
    return median(seconds)


def table(figures: Figures) -> Table:
    """Return how long planning and simulating took, beside what they may take."""
    speed = figures["speed"]
    ops = f"{speed['ops']:,} ops"
    rows = [
        [f"planning {ops}, {speed['candidates']:,} candidates", f"{speed['planning_seconds']:.1f} s", "5 s"],
        [f"simulating {ops}, {speed['swaps']:,} swaps", f"{speed['simulation_ms']:.2f} ms", "1 ms"],
    ]
    return Table("Speed", ["", "took", "bar"], rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Compare the policies on each network, and time a large one."""
    found = [compare(name) for name in args.networks]
    figures = Figures(machine=MACHINE.name, networks=[network for network, _ in found], speed=speed())
    yield Result("swapping", figures, [*(each for _, each in found), table(figures)])
