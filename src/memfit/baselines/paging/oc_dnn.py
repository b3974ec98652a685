"""OC-DNN (Awan et al., HiPC 2018): managed memory, where the next layer's storages are fetched and used ones evicted.

A layer is an op, as for the other policies here. While an op runs, the next one's storages come in. A storage leaves
when the forward part, or the iteration, has used it for the last time, if the iteration does not fit as it is.
"""

from __future__ import annotations

from memfit.baselines.paging.managed import Fetch, Managed, Range
from memfit.baselines.paging.policy import PagedRun
from memfit.ir import Phase, Trace, accessing_ops
from memfit.machine import Machine
from memfit.simulate import load_bytes

_ITERATIONS = 2


def oc_dnn(trace: Trace, machine: Machine, budget_bytes: int) -> PagedRun:
    """Return the second iteration; raises BudgetError if a block does not fit."""
    managed = Managed.of(trace, machine, budget_bytes, _ITERATIONS)
    fits = int(load_bytes(trace).max()) <= budget_bytes
    found = managed.run(_next_ones(trace, managed), () if fits else _used(trace, managed))
    return managed.finished("oc-dnn", found)


def _next_ones(trace: Trace, managed: Managed) -> list[Fetch]:
    """Return what each op has fetched: the storages of the op after it that are there already."""
    count = len(trace.ops)
    return [
        (at - 1, *managed.pager.range_of(k, storage), at)
        for k in range(_ITERATIONS)
        for op, its in enumerate(trace.ops)
        if (at := k * count + op) > 0
        for storage in dict.fromkeys((*its.reads, *its.writes))
        if trace.storages[storage].alloc < op or trace.storages[storage].born_before
    ]


def _used(trace: Trace, managed: Managed) -> list[Range]:
    """Return what leaves after each op."""
    count = len(trace.ops)
    return [
        (k * count + op, *managed.pager.range_of(k, storage))
        for k in range(_ITERATIONS)
        for storage, uses in enumerate(accessing_ops(trace))
        for op in _last_uses(trace, uses)
        if op < trace.storages[storage].free - 1
    ]


def _last_uses(trace: Trace, uses: list[int]) -> set[int]:
    """Return the last of these ops, and the last in the forward part."""
    forward = [op for op in uses if trace.ops[op].phase is Phase.FORWARD]
    return {*uses[-1:], *forward[-1:]}
