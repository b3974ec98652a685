"""Every swap policy on recorded models, at 80, 60 and 40 % of the peak and at the smallest budget each can reach.

Reads the traces that record_models.py writes (`--traces FOLDER`); plans for one machine (`--machine`). Where a policy
finds no plan its cell has the memory that it would need, as a share of the peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import ROOT, save, show

from memfit.baselines.policies import POLICIES
from memfit.comparing.policies import compare_policies
from memfit.files import find_machine, load_trace
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap import smallest_budget
from memfit.reporting.policies import PolicyCell
from memfit.simulate import load_bytes
from memfit.units import format_share

SHARES = (80, 60, 40)


def smallest(name: str, trace: Trace, machine: Machine, policies: Sequence[str]) -> list[PolicyCell]:
    """Return each policy at the least budget it says it can reach; at the least of all where it says nothing."""
    least, _ = smallest_budget(trace)
    cells = []
    for policy in policies:
        (cell,) = compare_policies(name, trace, machine, [least], [policy]).cells
        if cell.overhead is None and cell.required_bytes:
            (cell,) = compare_policies(name, trace, machine, [cell.required_bytes], [policy]).cells
        cells.append(cell)
    return cells


def text(cell: PolicyCell, peak: int) -> str:
    """Return the added time, or what memory it would take; `at` for a budget of the policy's own."""
    if cell.overhead is None:
        return f"(needs {cell.required_bytes / peak:.0%})" if cell.required_bytes else "-"
    return format_share(cell.overhead)


def compare(path: Path, machine: Machine, policies: Sequence[str]) -> dict[str, Any]:
    """Print one model's table and return its figures."""
    trace = load_trace(path)
    name, peak = path.name.split(".")[0], int(load_bytes(trace).max())
    found = compare_policies(name, trace, machine, [peak * share // 100 for share in SHARES], policies).cells
    least = smallest(name, trace, machine, policies)
    rows = []
    for index, policy in enumerate(policies):
        cells = [found[share * len(policies) + index] for share in range(len(SHARES))]
        low = least[index]
        reached = f"{text(low, peak)} at {low.budget_bytes / peak:.0%}" if low.overhead is not None else text(low, peak)
        rows.append([policy, *(text(cell, peak) for cell in cells), reached])
    show(f"{name}: {len(trace.ops)} ops, {peak / 1e9:.1f} GB, {machine.name}",
         ["policy", *(f"{share} %" for share in SHARES), "smallest"], rows)  # fmt: skip
    return {"name": name, "ops": len(trace.ops), "peak_bytes": peak, "machine": machine.name,
            "cells": [asdict(cell) for cell in found], "smallest": [asdict(cell) for cell in least]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=ROOT / "benchmarks" / "traces")
    parser.add_argument("--machine", default="nvlink-c2c")
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    args = parser.parse_args()
    machine = find_machine(args.machine)
    save("peers", [compare(path, machine, args.policies) for path in sorted(args.traces.glob("*.json.gz"))])


if __name__ == "__main__":
    main()
