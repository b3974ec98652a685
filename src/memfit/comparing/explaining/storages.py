"""Storages by a pattern, each with its gaps: what the plan does, what the other ways cost, and why not them."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from memfit.arrays import Int64Array
from memfit.comparing.explaining.carried import Carried
from memfit.comparing.names import op_info, tensor_info
from memfit.errors import UsageError
from memfit.ir import Direction, Recompute, Trace, accessing_ops
from memfit.planning.autoswap.candidates import end_of
from memfit.planning.joint.recipes import recipe_at_end
from memfit.planning.joint.refusals import refusal
from memfit.planning.lifetimes import Gap, births
from memfit.planning.naming import FORMS, storages_named
from memfit.reporting.explain_storage import (
    GapExplanation,
    KeepCost,
    RemakeAbsence,
    RemakeCost,
    StorageExplanation,
    StoragesReport,
    SwapAbsence,
    SwapCost,
)
from memfit.simulate import load_bytes

_HIDDEN_US = 1e-3


class Why(StrEnum):
    """The reason for a decision, as far as figures tell one."""

    ROOM = "everything that is live fits there"
    OTHERS = "others leave instead, and what is left fits"
    ONLY_WAY = "it cannot be made again"
    HIDDEN = "its copies run beside the ops and delay none"
    CHEAPER_SWAP = "ops wait less for its copies than making it again takes"
    SWAPS_ONLY = "making it again would take less by itself, but this plan makes nothing again"
    FOUND_SWAP = "making it again would take less by itself, but no faster plan was found with it"
    SHORT = "the gap is shorter than its copies"
    FULL = "the link has no time left for its copies in the gap"
    CHEAPER_REMAKE = "making it again takes less than its copies"
    FOUND_REMAKE = "its copies would take less by themselves, but no faster plan was found with them"


def matching(trace: Trace, pattern: str) -> list[int]:
    """Return the storages that `pattern` names (`memfit.planning.naming`), the largest first.

    Raises:
        UsageError: It names none.
    """
    found = storages_named(trace, pattern)
    if not found:
        raise UsageError(
            f"no storage matches {pattern!r}",
            why=f"the trace has storages #0 to #{len(trace.storages) - 1}, and none of that name",
            remedy=f"pass {FORMS}; without a pattern memfit explain lists the largest lines",
        )
    return sorted(found, key=lambda s: (-trace.storages[s].size_bytes, s))


def explain_storages(carried: Carried, pattern: str) -> StoragesReport:
    """Return what the plan does with the storages that match `pattern`; raises UsageError if none does."""
    found = matching(carried.trace, pattern)
    explainer = _Explainer(carried)
    plan = carried.plan
    return StoragesReport(
        pattern=pattern,
        policy=plan.policy,
        machine=carried.machine.name,
        budget_bytes=plan.budget_bytes,
        matched=len(found),
        matched_bytes=sum(carried.trace.storages[s].size_bytes for s in found),
        storages=tuple(explainer.storage(s) for s in found),
    )


def reasons(carried: Carried) -> dict[int, tuple[Gap, Why]]:
    """Return, by storage, the widest of the gaps in which it leaves, or of all, and why the plan does that there."""
    explainer, leaves = _Explainer(carried), carried.swaps.keys() | carried.remade.keys()
    widest = {
        storage: max(own, key=lambda gap: (gap in leaves, gap.duration_us))
        for storage, own in carried.gaps.items()
        if own
    }
    return {storage: (gap, explainer.why(gap)) for storage, gap in widest.items()}


class _Explainer:
    """Holds what all storages of a trace need, computed once."""

    def __init__(self, carried: Carried) -> None:
        self.carried, self.trace = carried, carried.trace
        self.load = load_bytes(self.trace)
        over = np.tile(self.load > carried.plan.budget_bytes, 2)  # a gap may run into the next iteration
        self.over = np.concatenate(([0], np.cumsum(over)))
        self.resident = np.array(carried.timeline.resident_bytes, dtype=np.int64)
        self.begin_us = np.concatenate(([0.0], np.cumsum([op.duration_us for op in self.trace.ops])))
        self.uses, self.born_in = accessing_ops(self.trace), births(self.trace)
        self.times = {(c.swap, c.direction): (c.start_us, c.end_us) for c in carried.timeline.copies}
        self.wait_us = carried.wait_us()
        self.copies = {
            way: np.array(
                [(c.swap, c.start_us, c.end_us) for c in carried.timeline.copies if c.direction is way]
            ).reshape(-1, 3)
            for way in Direction
        }

    def storage(self, index: int) -> StorageExplanation:
        trace, storage, uses = self.trace, self.trace.storages[index], self.uses[index]
        last, outlives = (uses[-1] if uses else None), self.trace.outlives(storage)
        own = self.carried.gaps.get(index, ())
        stays = last is not None and not trace.recurs(storage) and all(gap.returns for gap in own)
        return StorageExplanation(
            tensor=tensor_info(trace, index),
            made_by=op_info(trace, self.born_in[index]) if index in self.born_in else None,
            alive_from=None if storage.born_before else op_info(trace, storage.alloc),
            alive_until=None if outlives else op_info(trace, max(storage.free - 1, 0)),
            last_use=None if last is None else op_info(trace, last),
            unused_us=float(self.begin_us[storage.free] - self.begin_us[last + 1]) if stays and last is not None else 0,
            gaps=tuple(self.gap(gap) for gap in own),
        )

    def gap(self, gap: Gap) -> GapExplanation:
        swaps = tuple(self._swap(number) for number in self.carried.swaps.get(gap, ()))
        remade = tuple(self._remaking(one) for one in self.carried.remade.get(gap, ()))
        kinds = [name for name, found in (("recomputed", remade), ("swapped", swaps)) if found]
        return GapExplanation(
            after=op_info(self.trace, gap.after),
            before=op_info(self.trace, gap.before),
            duration_us=gap.duration_us,
            cyclic=gap.cyclic,
            returns=gap.returns,
            decision=" and ".join(kinds) or "kept",
            why=self.why(gap),
            swaps=swaps,
            remakings=remade,
            keep=self._keep(gap),
            swap=self._swap_cost(gap),
            remake=self._remake_cost(gap),
        )

    def why(self, gap: Gap) -> Why:
        """Return the reason for what the plan does in a gap."""
        if remade := self.carried.remade.get(gap):
            again_us = sum(self.carried.again_us[one] for one in remade)
            return _why_remade(again_us, self._swap_cost(gap))
        if swaps := self.carried.swaps.get(gap):
            wait_us = sum(self.wait_us.get(number, 0.0) for number in swaps)
            return _why_swapped(wait_us, self._remake_cost(gap), makes_again=bool(self.carried.recomputes))
        begin, end = gap.after + 1, end_of(self.trace, gap)
        return Why.OTHERS if self.over[end] > self.over[begin] else Why.ROOM

    def _swap(self, number: int) -> SwapAbsence:
        carried = self.carried
        swap, op_of = carried.plan.swaps[number], carried.made.op_of
        out, into = (self.times.get((number, way), (None, None)) for way in (Direction.OUT, Direction.IN))
        return SwapAbsence(
            leaves_after=op_info(self.trace, op_of[swap.out_after]),
            back_before=op_info(self.trace, op_of[swap.in_before % len(op_of)]),
            returns=swap.returns,
            out_start_us=out[0],
            out_end_us=out[1],
            in_start_us=into[0],
            in_end_us=into[1],
            wait_us=self.wait_us.get(number, 0.0),
        )

    def _remaking(self, one: Recompute) -> RemakeAbsence:
        return RemakeAbsence(
            dropped_after=op_info(self.trace, one.after),
            made_before=op_info(self.trace, one.before),
            ops=tuple(op_info(self.trace, op) for op in one.ops),
            rerun_us=sum(self.trace.ops[op].duration_us for op in one.ops) if one.returns else 0.0,
            shared_us=self.carried.again_us[one],
            returns=one.returns,
        )

    def _keep(self, gap: Gap) -> KeepCost:
        count, place = len(self.trace.ops), self.carried.place
        inside = np.arange(gap.after + 1, end_of(self.trace, gap)) % count
        fullest = int(inside[self.load[inside].argmax()])
        end = place[gap.before] + gap.cyclic * len(self.resident)
        made = np.arange(place[gap.after] + 1, end) % len(self.resident)
        return KeepCost(
            live_bytes=int(self.load[fullest]),
            fullest=op_info(self.trace, fullest),
            held_bytes=int(self.resident[made].max()),
            budget_bytes=self.carried.plan.budget_bytes,
        )

    def _swap_cost(self, gap: Gap) -> SwapCost:
        machine, timeline, place = self.carried.machine, self.carried.timeline, self.carried.place
        out_us = machine.out.copy_us(gap.size_bytes)
        in_us = machine.into.copy_us(gap.size_bytes) if gap.returns else 0.0
        begin = timeline.end_us[place[gap.after]]
        end = timeline.start_us[place[gap.before]] + gap.cyclic * timeline.iteration_us
        own = np.array(self.carried.swaps.get(gap, []), dtype=np.int64)
        out_busy, in_busy = (self._busy(way, begin, end, own) for way in (Direction.OUT, Direction.IN))
        return SwapCost(out_us, in_us, max(0.0, out_us + in_us - gap.duration_us), end - begin, out_busy, in_busy)

    def _busy(self, way: Direction, begin: float, end: float, own: Int64Array) -> float:
        """Return the part of a time in which copies go this way, without those of the swaps `own`."""
        swap, start_us, end_us = self.copies[way].T
        busy_us, others = 0.0, ~np.isin(swap, own)
        for turn in (-1, 0, 1):  # a copy may belong to the iteration before, and a gap run into the next
            shift = turn * self.carried.timeline.iteration_us
            inside = np.minimum(end_us + shift, end) - np.maximum(start_us + shift, begin)
            busy_us += float(inside[others & (inside > 0)].sum())
        return min(1.0, busy_us / (end - begin)) if end > begin else 0.0

    def _remake_cost(self, gap: Gap) -> RemakeCost:
        values, trace = self.carried.values, self.trace
        refused = refusal(values, gap)
        recipe = None if refused else recipe_at_end(values, gap)
        if recipe is not None and not gap.returns:
            return RemakeCost(0.0, (), "", None, None)
        if recipe is not None:
            return RemakeCost(recipe.us, tuple(op_info(trace, op) for op in recipe.ops), "", None, None)
        op, storage = (refused.op, refused.storage) if refused else (None, None)
        return RemakeCost(
            rerun_us=None,
            ops=(),
            refusal=refused.reason.value if refused else "",
            refused_op=None if op is None else op_info(trace, op),
            refused_storage=None if storage is None else tensor_info(trace, storage),
        )


def _why_remade(again_us: float, swap: SwapCost) -> Why:
    """Return the first reason for a remaking that the figures bear out."""
    if swap.least_wait_us > 0:
        return Why.SHORT
    free_out_us, free_in_us = ((1 - busy) * swap.planned_us for busy in (swap.out_busy, swap.in_busy))
    if free_out_us < swap.out_us or free_in_us < swap.in_us:
        return Why.FULL
    return Why.CHEAPER_REMAKE if again_us <= swap.out_us + swap.in_us else Why.FOUND_REMAKE


def _why_swapped(wait_us: float, remake: RemakeCost, *, makes_again: bool) -> Why:
    """Return the first reason for a swap that the figures bear out."""
    if remake.rerun_us is None:
        return Why.ONLY_WAY
    if wait_us <= _HIDDEN_US:
        return Why.HIDDEN
    if wait_us <= remake.rerun_us:
        return Why.CHEAPER_SWAP
    return Why.FOUND_SWAP if makes_again else Why.SWAPS_ONLY
