"""The memory use of a recorded iteration, in numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from memfit.comparing.names import op_info, tensor_info
from memfit.ir import Category, Storage, Trace
from memfit.planning.lifetimes import (
    Gap,
    comfortable_budget,
    executable_budget,
    fixed_bytes,
    gaps,
    largest_small,
    live_after,
    operands,
    peak_live,
    peak_tick,
    small_bytes,
)
from memfit.reporting.info import CategoryBytes, GapInfo, MinimumBudget, SourceBytes, TraceInfo

_TOP_SOURCES = 3
_TOP_GAPS = 5
_TOP_TENSORS = 8


def describe_trace(trace: Trace) -> TraceInfo:
    """Return the report on `trace`."""
    peak_bytes, peak_op = peak_live(trace)
    at_peak = [trace.storages[s] for s in live_after(trace, peak_tick(trace))]
    return TraceInfo(
        script=trace.script,
        iteration=trace.iteration,
        device=trace.device,
        torch_version=trace.torch_version,
        op_count=len(trace.ops),
        storage_count=len(trace.storages),
        duration_us=sum(op.duration_us for op in trace.ops),
        peak_bytes=peak_bytes,
        peak_op=op_info(trace, peak_op),
        lower_bound_bytes=peak_live(trace, aligned=True)[0],
        live_at_peak=_by_category(at_peak),
        largest_gaps=tuple(_gap_info(trace, gap) for gap in gaps(trace)[:_TOP_GAPS]),
        minimum=_minimum(trace),
    )


def _gap_info(trace: Trace, gap: Gap) -> GapInfo:
    return GapInfo(
        tensor=tensor_info(trace, gap.storage),
        after=op_info(trace, gap.after),
        before=op_info(trace, gap.before),
        duration_us=gap.duration_us,
        cyclic=gap.cyclic,
        returns=gap.returns,
    )


def _by_category(storages: Iterable[Storage]) -> tuple[CategoryBytes, ...]:
    groups: dict[Category, list[Storage]] = defaultdict(list)
    for storage in storages:
        groups[storage.category].append(storage)
    totals = [
        CategoryBytes(category.value, _total(group), len(group), _top_sources(group), _stored_share(group))
        for category, group in groups.items()
    ]
    return tuple(sorted(totals, key=lambda total: (-total.size_bytes, total.category)))


def _stored_share(storages: Iterable[Storage]) -> float | None:
    left = [storage for storage in storages if storage.stored_bytes and storage.size_bytes]
    return sum(storage.stored_bytes for storage in left) / _total(left) if left else None


def _top_sources(storages: Iterable[Storage]) -> tuple[SourceBytes, ...]:
    groups: dict[str, list[Storage]] = defaultdict(list)
    for storage in storages:
        groups[storage.source].append(storage)
    totals = [SourceBytes(source, _total(group), len(group)) for source, group in groups.items()]
    return tuple(sorted(totals, key=lambda total: (-total.size_bytes, total.source))[:_TOP_SOURCES])


def _total(storages: Iterable[Storage]) -> int:
    return sum(storage.size_bytes for storage in storages)


def _minimum(trace: Trace) -> MinimumBudget:
    iteration_bytes, op = comfortable_budget(trace)
    small = largest_small(executable_budget(trace)[0])
    tensors = [tensor_info(trace, s) for s in operands(trace, op)]
    tensors.sort(key=lambda tensor: (-tensor.size_bytes, tensor.storage))
    return MinimumBudget(
        budget_bytes=max(iteration_bytes, trace.before.total_bytes if trace.before else 0),
        iteration_bytes=iteration_bytes,
        before=trace.before,
        op=op_info(trace, op),
        workspace_bytes=trace.ops[op].workspace_bytes,
        split_bytes=trace.ops[op].split_bytes,
        fixed_bytes=int(fixed_bytes(trace, small)[op]),
        small_bytes=int(small_bytes(trace, small)[op]),
        operand_count=len(tensors),
        largest_operands=tuple(tensors[:_TOP_TENSORS]),
    )
