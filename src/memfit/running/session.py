"""A session: every storage of one device inside a budget, from `with` to the end of its block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from memfit.errors import BudgetError, EngineError, MemfitError, TierError, UsageError
from memfit.ir import Demand, Plan, Timeline, Trace, align_up
from memfit.machine import Machine
from memfit.messages import say
from memfit.planning.lifetimes import minimum_budget, operands, peak_live
from memfit.running import chunking, devices, engine, guards, host, patching
from memfit.running.devices import parse_device
from memfit.running.engine_plan import EnginePlan, PackedPlan
from memfit.running.iterations import Iterations
from memfit.running.link import SessionLink
from memfit.running.measure_cuda import cuda_machine
from memfit.running.planned import Planner
from memfit.running.tiers import TierSpec, tier_for
from memfit.running.unavailable import typed
from memfit.running.undisturbed import Undisturbed
from memfit.tracing.build import RawRecording
from memfit.tracing.ghosts import only_ghosts
from memfit.tracing.packed import PackedIteration
from memfit.tracing.roofline import Accelerator
from memfit.units import format_bytes, format_least_bytes, format_part, parse_budget


@dataclass(frozen=True)
class Stats:
    """What a session has done so far. Sizes in bytes; `peak_*` since the budget took effect.

    `live` counts every storage, wherever its bytes are; `resident` those in the arena; `footprint` is the
    highest used address of the arena. `drops` are evictions that moved nothing, since the tier's copy was valid.
    `planned_allocations` got their addresses from a plan; `plan_mismatches` were not as planned. `swaps` left the arena
    and `prefetches` came back by a plan, copied beside the ops, which waited `stall_ns` for them; `copy_ns` is what ops
    waited for copies that no plan had foreseen. `derailments` are iterations whose ops were not the plan's;
    `lane_failures` plans that were not used, since the system had no thread left for their copies.
    `recording_given_up_ops` is after how many ops no iteration had been found and memfit stopped looking (0: it did
    not); an optimizer's step makes it look again. `record_bytes` are memfit's own records of iterations and plans, at
    present. All copies together took `out_ns` and `in_ns`, but for those of
    `untimed_*` bytes, which no clock was held to: on a GPU they are part of its work. `unseen_writes` are storages that
    changed though no op was seen to write to them, found among the `bytes_checked` before their copies were trusted, in
    `check_ns`. `growths` are the times the budget was exceeded for an op, by `peak_growth_bytes` at most.
    """

    budget_bytes: int
    live_bytes: int
    resident_bytes: int
    footprint_bytes: int
    free_bytes: int
    largest_free_bytes: int
    peak_live_bytes: int
    peak_resident_bytes: int
    peak_footprint_bytes: int
    tier_used_bytes: int
    tier_footprint_bytes: int
    adopted_bytes: int
    stray_bytes: int
    ops: int
    allocations: int
    evictions: int
    drops: int
    bytes_out: int
    bytes_in: int
    relocations: int
    bytes_relocated: int
    consolidations: int
    iterations: int
    planned_footprint_bytes: int
    plans: int
    planned_allocations: int
    plan_mismatches: int
    unseen_writes: int
    bytes_checked: int
    check_ns: int
    growths: int
    peak_growth_bytes: int
    swaps: int
    prefetches: int
    failed_copies: int
    derailments: int
    lane_failures: int
    record_bytes: int
    recording_given_up_ops: int
    stall_ns: int
    copy_ns: int
    out_ns: int
    in_ns: int
    untimed_out_bytes: int
    untimed_in_bytes: int

    @property
    def fragmentation(self) -> float:
        """The part of the free space that is not in its largest hole, 0 to 1."""
        return 1 - self.largest_free_bytes / self.free_bytes if self.free_bytes else 0.0


_begun: list[Session] = []
"""The one that is active, in a forked child too."""


class Session:
    """A `with` block whose tensors stay within a budget. `memfit.session` makes it."""

    def __init__(
        self, budget: str | int | None, tier: str | TierSpec | None = None, *, device: str | torch.device = "auto",
        record: bool = True, script: str = "", plan: bool | Plan = True, measures: bool = False,
        on_trace: Callable[[], None] | None = None, accelerator: Accelerator | None = None, grow: bool | None = None,
        announce: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        # Is told in a sentence when a share becomes a limit, and when a plan first comes into force.
        self._announce = announce
        self._told_of_plan = False
        self._began: float | None = None
        # With an accelerator the session records storages of device meta, and those alone, as if that one ran them.
        self._accelerator = accelerator
        self._budget = None if budget is None else parse_budget(budget)
        # What runs on meta needs no GPU, and its own accelerator is none that is here.
        self._device = parse_device("cpu" if accelerator is not None else str(device))
        self._tier = tier if isinstance(tier, TierSpec) else tier_for(tier, self._device)
        self._record = record
        self._script = script
        self._plan = plan is not False and accelerator is None
        self._given = plan if isinstance(plan, Plan) else None
        self._measures = measures
        self._on_trace = on_trace
        self._share_pending = self._budget is not None and self._budget.bytes is None
        self._grow = self._share_pending if grow is None else grow
        self._whole: PackedIteration | None = None  # the first one
        self._trace: Trace | None = None  # made of it; until the next iteration ends
        self._peak_bytes: int | None = None
        self._final: Stats | None = None
        self._signatures: list[str] = []
        self._signature_counts: dict[str, int] = {}
        self._contexts = ExitStack()

    if TYPE_CHECKING:

        def __enter__(self) -> Session: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...
    else:
        __enter__ = Undisturbed("_begin", undo="_end")
        __exit__ = Undisturbed("_left")

    def _begin(self) -> Session:
        if self._final is not None:
            raise UsageError("this session has ended", remedy="make another: memfit.session(...)")
        if self._device.type == "cuda" and engine.cuda_headers() is None:
            raise EngineError(
                f"memfit cannot govern {self._device} yet", why=engine.NO_CUDA_HEADERS, remedy="memfit doctor"
            )
        native = engine.load()
        if native.is_inert():  # a forked child's own: it has no more use for its parent's
            _begun[-1]._end()
        if native.active():
            raise UsageError("a memfit session is active already", remedy="end it before you start another")
        self._engine = native
        self._iterations = Iterations(self._engine, self._iteration_ended)
        self._planner = Planner(
            self._engine, SessionLink(self._tier, self._measured_machine()), self._given, self._measures
        )
        _begun.append(self)
        self._contexts.enter_context(devices.entered(self._device))
        self._engine.start(
            str(self._device), self._fixed_bytes or 0, host.unlimited_arena_bytes(self._device.type),
            self._grow, self._tier.recipe(), threading.active_count() > 1,
        )  # fmt: skip
        self._enter_contexts()
        self._adopt_visible()
        self._began = time.monotonic()
        return self

    @property
    def _fixed_bytes(self) -> int | None:
        """The budget that holds from the first op; None for a share, or for none."""
        return None if self._budget is None else self._budget.bytes

    def _measured_machine(self) -> Machine | None:
        """Return the GPU's machine, whose link no session's first copies tell; None for the CPU and for a disk."""
        direct = self._device.type == "cuda" and self._tier.kind == "ram" and not self._tier.folder
        return cuda_machine(self._device) if direct and self._plan else None

    def _enter_contexts(self) -> None:
        self._engine.on_notice(say)
        self._contexts.enter_context(guards.installed(self._engine))
        self._contexts.enter_context(chunking.installed(devices.chunk_bytes(self._device, self._fixed_bytes)))
        self._contexts.enter_context(self._iterations.watched())
        if self._accelerator is not None:
            self._engine.watch_meta()
        if self._record:
            self._engine.on_period(self._period_found)
            self._engine.start_recording()

    def _left(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._engine.is_inert():  # a forked child: it goes on reading what its parent's session has swapped out
            return
        failure = self._engine.last_failure()
        lost = self._end()
        if isinstance(error, RuntimeError) and not isinstance(error, MemfitError) and "memfit: " in str(error):
            # The op met a storage without bytes and raised torch's own error with the engine's message in it.
            raise typed(error, failure) from error
        if lost and error is None:
            raise TierError("some tensors could not be read back", why="; ".join(lost), remedy="see `memfit doctor`")

    def _end(self) -> list[str]:
        """Give every storage ordinary memory again, as far as the session has begun; return what could not be."""
        if self not in _begun:
            return []
        _begun.remove(self)
        try:
            if self._engine.active():
                self._close()
        finally:
            self._iterations.forget()
            with self._contexts:
                report = self._engine.stop()
        return list(report["lost"])

    def _close(self) -> None:
        if not self._engine.is_inert():
            self._planner.close()
        self._final, self._signatures = self.stats, self.signatures
        self._signature_counts = self.signature_counts
        self._adopt_visible()

    @property
    def stats(self) -> Stats:
        """The session's counts and sizes so far, or at its end."""
        if self._final is not None:
            return self._final
        stats = self._engine.stats()
        kept = 0 if self._whole is None else self._whole.packed.size_bytes
        return Stats(**stats | {"record_bytes": stats["record_bytes"] + kept + self._planner.record_bytes})

    @property
    def signatures(self) -> list[str]:
        """The last 1,024 iterations, one text each; equal texts mean the same ops on storages of the same sizes."""
        if self._final is not None and self._signatures:
            return self._signatures
        return [f"{signature:016x}" for signature in self._engine.signatures()]

    @property
    def signature_counts(self) -> dict[str, int]:
        """The number of iterations of each signature; kinds after the first 4,096 are not counted."""
        if self._final is not None and self._signature_counts:
            return self._signature_counts
        return {f"{signature:016x}": count for signature, count in self._engine.signature_counts().items()}

    @property
    def recorded(self) -> Trace | None:
        """The first whole iteration, or None while none has ended. It is made when asked for, which takes a moment."""
        if self._trace is None and self._whole is not None:
            self._trace = self._whole.trace()
        return self._trace

    @property
    def trace(self) -> Trace:
        """The first whole iteration, built when it is asked for, which takes a moment.

        Raises:
            UsageError: No whole iteration has ended yet.
        """
        trace = self.recorded
        if trace is None:
            raise UsageError(
                "no whole iteration has been recorded",
                why="an iteration is whole from one optimizer step to the next, or when the op stream has repeated",
                remedy="run at least two steps inside the session",
            )
        return trace

    @property
    def peak_bytes(self) -> int | None:
        """The peak that shares are of, or None while no whole iteration has ended."""
        if self._peak_bytes is None and self.recorded is not None:
            self._peak_bytes = peak_live(self.recorded, aligned=True)[0]
        return self._peak_bytes

    @property
    def began(self) -> float | None:
        """When its block began, by `time.monotonic`; None if it has not."""
        return self._began

    @property
    def tier(self) -> TierSpec:
        """Where bytes go that do not fit."""
        return self._tier

    @property
    def why_no_limit(self) -> str:
        """Why a share of the peak is no limit yet; empty if it is one, or none was asked for."""
        if not self._share_pending:
            return ""
        return self._iterations.why_none_was_whole() if self._whole is None else "it could not be met"

    @property
    def planned_iterations(self) -> int:
        """The number of iterations that ran wholly by a plan, from beginning to end."""
        return self._planner.followed

    @property
    def planned(self) -> EnginePlan | None:
        """The plan in force, or that was last."""
        return None if self._planner.plan is None else self._planner.plan.plan()

    @property
    def packed_plan(self) -> PackedPlan | None:
        """The same as it is kept, with the iteration that it was made for."""
        return self._planner.plan

    @property
    def measured(self) -> Timeline | None:
        """What the last whole iteration under a plan that swaps did, if the session `measures`."""
        return self._planner.measured

    @property
    def given_plan(self) -> str:
        """What became of the plan that was passed: "used", or why it was not; empty while it has not been tried."""
        return self._planner.given_outcome

    def record_span(self, span: Callable[[], object]) -> Trace:
        """Run `span` and return the trace of everything in it, as one iteration."""
        self._engine.boundary()
        self._engine.start_recording()
        try:
            with self._iterations.one():
                span()
        finally:
            raw = self._engine.stop_recording()
        self._engine.boundary()
        count = len(raw["ops"]) // RawRecording.OP_BYTES
        if count == 0:
            raise UsageError("nothing was recorded", why="no op ran", remedy="pass a function that runs one iteration")
        return self._packed(raw, 0, count).trace()

    def hold(self, tensor: torch.Tensor) -> Any:
        """Keep a tensor's bytes in memory for a `with` block, for code that reads them without an op.

        Arguments:
            tensor: A tensor of the session's device.

        Returns:
            A context manager. The bytes are in the arena, at one address, until its block ends.
        """
        return patching.held(self._engine, tensor)

    def read_bytes(self, storage: torch.UntypedStorage) -> bytes:
        """Copy a storage's bytes, wherever they are, without bringing them in and without an op.

        Arguments:
            storage: A storage of the session's device.

        Returns:
            All its bytes.

        Raises:
            ValueError: The storage has no bytes, as that of a gradient that torch knows to be all zeros.
        """
        return bytes(self._engine.read_bytes(storage, 0, storage.nbytes()))

    def _adopt_visible(self) -> None:
        """Show the engine every tensor Python can see: those made before the session move into the budget."""
        self._engine.adopt_visible()
        self._engine.release_cached()

    def _iteration_ended(self, at_boundary: bool = True) -> None:
        """Close the recording at the end of the first whole iteration and let a relative budget take effect."""
        if not self._record:
            return
        self._trace = None
        if self._whole is None:
            marks = self._engine.iteration_marks()[-2:]
            # Two steps with no op between them are not the iteration to learn from.
            if len(marks) < 2 or marks[0] == marks[1]:
                return
            first, last = marks
            self._iterations.watch_roles = False
            raw = self._engine.stop_recording()
            self._whole = self._packed(raw, first, last)
            del raw
            host.give_back_freed()
            if self._on_trace is not None:
                self._on_trace()
        # Again at each iteration's end while it fails: a script that catches the error is not without a limit.
        if self._share_pending:
            self._apply(self._whole.trace())
        if self._plan:
            self._planner.iteration_ended(at_boundary)
            self._tell_of_plan()

    def _tell_of_plan(self) -> None:
        """Announce the first plan that is in force."""
        plan = self._planner.plan
        if self._announce is None or self._told_of_plan or plan is None or not self._planner.in_use:
            return
        self._told_of_plan = True
        self._announce(f"a plan is in force for iterations like this one: {plan.plan().describe()}")

    def _packed(self, raw: Mapping[str, Any], first: int, last: int) -> PackedIteration:
        signatures = self._engine.signatures()
        recording = RawRecording.of(raw)
        if self._accelerator is not None:
            recording = only_ghosts(recording)
        return PackedIteration.of(
            recording, first, last, self._iterations.roles, self._accelerator,
            signature=f"{signatures[-1]:016x}", torch_version=torch.__version__, device=self._device.type,
            alignment=self._engine.alignment(),
            script=self._script, iteration=self._engine.stats()["iterations"] - 1,
        )  # fmt: skip

    def _apply(self, trace: Trace) -> None:
        """Turn the budget's share of the peak into a limit."""
        assert self._budget is not None
        self._peak_bytes = peak_bytes = peak_live(trace, aligned=True)[0]
        budget_bytes = self._budget.resolve(peak_bytes)
        self._engine.set_peak(peak_bytes)
        needed, op = minimum_budget(trace)
        needed = align_up(needed, self._engine.page_bytes())
        if needed > budget_bytes:
            raise infeasible(trace, budget_bytes, needed, op)
        self._adopt_visible()
        self._engine.set_budget(budget_bytes)
        self._engine.allow_growth(self._grow)
        self._share_pending = False
        if self._announce is not None:
            self._announce(f"the limit is in force: {format_part(budget_bytes, peak_bytes)} of the peak")
        if trace.before is not None and trace.before.total_bytes > budget_bytes:
            say(f"memfit: {_exceeds(trace.before, budget_bytes, self._grow)}")

    def _period_found(self) -> None:
        """Answer the engine at the end of some op: an error may only be left for the next allocation."""
        with self._iterations.turn() as mine:
            if not mine:
                return
            if self._whole is None and self._engine.has_instance(torch.optim.Optimizer):
                # It has yet to step (gradients are being accumulated): its step is the iteration's end.
                self._engine.reject_period()
                return
            try:
                self._iteration_ended(at_boundary=False)
            except MemfitError as error:
                self._engine.fail_next(str(error), getattr(error, "required_bytes", None) or 0)


def _exceeds(before: Demand, budget_bytes: int, grow: bool) -> str:
    """Say that an op which ran before the limit would not fit in it."""
    at = f" at {before.source}" if before.source else ""
    again = "is given that" if grow else "may not fit"
    return (
        f"{before.name}{at} ran before the first whole iteration and needed {format_bytes(before.total_bytes)}, more "
        f"than the limit of {format_bytes(budget_bytes)}: if it runs again it {again}"
    )


def infeasible(trace: Trace, budget_bytes: int, needed_bytes: int, op_index: int) -> BudgetError:
    """Return the error for a budget below the smallest feasible one, which op `op_index` sets."""
    op, peak = trace.ops[op_index], peak_live(trace, aligned=True)[0]
    percent = min(-(-100 * needed_bytes // max(peak, 1)), 100)
    tensors = [
        f"{format_bytes(s.size_bytes)} {s.category}" + (f" from {s.source}" if s.source else "")
        for s in (trace.storages[i] for i in operands(trace, op_index))
    ]
    return BudgetError(
        f"the budget of {format_part(budget_bytes, peak)} of the peak, cannot be met",
        why=f"{op.name} at {op.source or 'an unknown line'} needs {format_bytes(needed_bytes)} at once: "
        f"{', '.join(tensors)}, and {format_bytes(op.workspace_bytes)} that it allocates",
        remedy=f"the smallest feasible budget is {format_least_bytes(needed_bytes)}, {percent} % "
        f"(--budget {percent}%); a smaller batch lowers it",
        required_bytes=needed_bytes,
        op=op.name,
        source=op.source,
        tensors=tensors,
    )


def session(budget: str | int | None, tier: str | TierSpec | None = None, *, device: str | torch.device = "auto",
            plan: bool | Plan = True, grow: bool | None = None) -> Session:  # fmt: skip
    """Return a context manager that keeps every tensor storage of one device within a budget.

    Only one session can be active in a process. On leaving the block, every tensor has ordinary memory again.

    Arguments:
        budget: Bytes (an int, or text such as "2GiB") hold from the first op. A share such as "60%" is taken of the
            peak of live bytes of the first whole iteration, which runs without a limit, and holds from the next
            iteration. None sets no limit.
        tier: The place of bytes that do not fit: "disk" or "disk:PATH" (a file; the default on the CPU), "ram" (a slab
            of memory; on a GPU page-locked host memory, and the default), "ram:8GiB", or "ram:8GiB+disk:PATH".
        device: "cpu", "cuda", "cuda:N", or "auto": the current GPU if there is one, otherwise the CPU.
        plan: True runs iterations that repeat by a plan: addresses from a table (SmartPool) and copies beside the ops
            (AutoSwap, both of arXiv 1903.06631). False never plans. A `Plan` is tried first.
        grow: Whether an op that does not fit gets more than the budget while it runs; otherwise it raises. None means
            True for a share, False for bytes.

    Returns:
        The session. It takes effect in a `with` block, and gives `stats` and `trace` also after it.

    Raises:
        InputError: The budget, the tier or the device is malformed.
        UsageError: On entering, another session is active.
        EngineError: On entering, the engine could not be built or loaded.
        BudgetError: From the op or the optimizer step that finds out that the budget cannot be met.
        TierError: From an op, or on leaving, when a copy fails.
        AccessError: From a call that is not an op and asks for bytes that are not in memory.
    """
    return Session(budget, tier, device=device, plan=plan, grow=grow)
