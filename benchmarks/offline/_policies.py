"""Swap policies compared on a trace: the table that both benchmarks of them print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.common.result import Table
from memfit.baselines.policies import find_policy
from memfit.comparing.policies import compare_policies
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.reporting.policies import PolicyCell, PolicyComparison
from memfit.simulate import load_bytes
from memfit.units import format_share


def compare(
    name: str, trace: Trace, machine: Machine, shares: Sequence[int], policies: Sequence[str]
) -> PolicyComparison:
    """Return each policy at shares (%) of the trace's peak."""
    peak = int(load_bytes(trace).max())
    return compare_policies(name, trace, machine, [peak * share // 100 for share in shares], policies, find_policy)


def added(cell: PolicyCell, peak_bytes: int) -> str:
    """Return the added time, or where there is no plan the memory it would take."""
    if cell.overhead is not None:
        return format_share(cell.overhead)
    return f"(needs {cell.required_bytes / peak_bytes:.0%})" if cell.required_bytes else "-"


def table(found: PolicyComparison, ops: int, shares: Sequence[int], more: Mapping[str, Sequence[str]]) -> Table:
    """Return one row a policy; `more` is each further column, a cell for each policy."""
    rows = []
    for index, policy in enumerate(found.policies):
        cells = [added(cell, found.unswapped_bytes) for cell in found.cells if cell.policy == policy]
        rows.append([policy, *cells, *(column[index] for column in more.values())])
    title = f"{found.file}: {ops} ops, {found.unswapped_bytes / 1e9:.1f} GB, added time on {found.machine}"
    return Table(title, ["policy", *(f"{share} %" for share in shares), *more], rows)
