"""A session: every storage of one device inside a budget, from `with` to the end of its block."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from memfit.errors import EngineError, InputError, TierError, UsageError
from memfit.ir import Plan, Trace
from memfit.planning.joint.program import Moves
from memfit.running import engine
from memfit.running.doors import addresses
from memfit.running.engine import patching
from memfit.running.engine.devices import parse_device
from memfit.running.engine.parts import dense_parts
from memfit.running.engine.tiers import TierSpec, tier_for, warn_if_in_memory
from memfit.running.planned.making import patience
from memfit.running.session.active import Running
from memfit.running.session.ended import Ended
from memfit.running.session.figures import Figures
from memfit.running.session.free import auto_budget
from memfit.running.session.settings import Mapping, Partition, Settings, Splitting
from memfit.running.session.stats_log import StatsLog
from memfit.running.session.unavailable import typed
from memfit.running.session.undisturbed import Undisturbed
from memfit.running.session.watch import Watch
from memfit.tracing.ghosts import Twins
from memfit.tracing.roofline import Accelerator
from memfit.units import is_auto, parse_budget


@dataclass(frozen=True, slots=True)
class _Entry:
    session: Session
    thread: int


_Choice = TypeVar("_Choice", bound=StrEnum)
_ACTIVE = "active"
_entries: dict[str, _Entry] = {}
"""That of the active session, in a forked child too. Whoever sets it first (`setdefault` is one step) has entered."""


class Session(Figures):
    """A `with` block whose tensors stay within a budget. `memfit.session` makes it.

    It has its settings, and a state: None before it begins, `Running`, then `Ended`.
    """

    def __init__(
        self, budget: str | int | None, tier: str | TierSpec | None = None, *, device: str | torch.device = "auto",
        record: bool = True, script: str = "", plan: bool | Plan = True, measures: bool = False,
        on_trace: Callable[[], None] | None = None, accelerator: Accelerator | None = None, grow: bool | None = None,
        announce: Callable[[str], None] | None = None, moves: str = "joint", plan_cache: bool = True,
        map: str = "auto", split: str = "auto", partition: str = "torch", notes_shapes: bool = False,
        twins: Twins | None = None,
    ) -> None:  # fmt: skip
        parsed = None if budget is None or is_auto(budget) else parse_budget(budget)
        # Device meta needs no GPU, and the accelerator it stands for is not in this machine.
        where = parse_device("cpu" if accelerator is not None else str(device))
        splitting = _one_of(Splitting, split, "does not say when ops run in slices", Splitting.AUTO)
        self._settings = Settings(
            budget=parsed,
            is_auto=is_auto(budget),
            tier=tier_for(tier, where),
            device=where,
            splitting=splitting if accelerator is None and where.type == "cpu" else Splitting.NEVER,
            grow=parsed is not None and parsed.bytes is None if grow is None else grow,
            mapping=_one_of(Mapping, map, "does not say when storages are mapped", Mapping.AUTO),
            partition=_one_of(Partition, partition, "does not say what compiled passes keep", Partition.TORCH),
            plans=plan is not False and accelerator is None,
            patience=patience(where.type),
            moves=_one_of(Moves, moves, "is nothing that plans can do", Moves.JOINT),
            given=plan if isinstance(plan, Plan) else None,
            measures=measures,
            keeps_plans=plan_cache,
            record=record,
            notes_shapes=notes_shapes,
            script=script,
            accelerator=accelerator,
            twins=twins,
            on_trace=on_trace,
            announce=announce,
        )
        self._state: Running | Ended | None = None

    if TYPE_CHECKING:

        def __enter__(self) -> Session: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> None: ...
    else:
        __enter__ = Undisturbed("_begin", undo="_undo")
        __exit__ = Undisturbed("_left")

    def _begin(self) -> Session:
        if isinstance(self._state, Ended):
            raise UsageError("this session has ended", remedy="make another: memfit.session(...)")
        addresses.refuse_among_kept("a session cannot begin")
        device = self._settings.device
        if device.type == "cuda" and not engine.has_cuda():
            raise EngineError(f"memfit cannot govern {device} yet", why=engine.NO_CUDA_HEADERS, remedy="memfit doctor")
        native = engine.load()
        if self._settings.is_auto:
            self._settings = replace(self._settings, budget=auto_budget(device, self._settings.tier))
        if self._settings.budget is not None:
            warn_if_in_memory(self._settings.tier, device)
        if native.is_inert() and _ACTIVE in _entries:  # a forked child's own: it has no more use for its parent's
            _entries[_ACTIVE].session._end()
        self._enter(_Entry(self, threading.get_ident()))
        self._state = running = Running(native, self._settings)
        running.begin()
        return self

    def _enter(self, entry: _Entry) -> None:
        first = _entries.setdefault(_ACTIVE, entry)
        if first is entry:
            return
        if first.session is self:
            why = "a session is one `with` block, and its block has begun"
            raise UsageError("this session is running already", why=why, remedy="remove the inner `with`")
        raise UsageError("a memfit session is active already", remedy="end it before you start another")

    @property
    def _entry(self) -> _Entry | None:
        entry = _entries.get(_ACTIVE)
        return entry if entry is not None and entry.session is self else None

    @property
    def _undo(self) -> Callable[[], object] | None:
        """The call that takes an entry back; None while the session runs, since the entry is refused then."""
        return None if self._entry is not None and not engine.load().is_inert() else self._take_back

    def _take_back(self) -> None:
        entry = self._entry
        if entry is not None and entry.thread == threading.get_ident():  # otherwise another thread's has come first
            self._end()

    def _left(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        native = engine.load()
        if native.is_inert():  # a forked child: it goes on reading what its parent's session has swapped out
            return
        failure = native.last_failure()
        lost = self._end()
        if isinstance(error, RuntimeError) and (own := typed(native, error, failure)) is not None:
            raise own from error
        if lost and error is None:
            raise TierError(
                "some tensors could not be read back",
                why="; ".join(lost),
                remedy="what did not fit is in the tier still: use it, or save it, in a session; see `memfit doctor`",
            )
        if error is None:
            addresses.refuse_among_kept("the session ended")

    def _end(self) -> list[str]:
        """Give every storage ordinary memory again, as far as the session has begun; return the failures."""
        if self._entry is None:
            return []
        try:
            return self._ended() if self._state is not None else []
        finally:
            _entries.pop(_ACTIVE, None)  # last: who enters meanwhile is refused

    def _ended(self) -> list[str]:
        running = self._running
        try:
            if running.engine.active():
                self._state = running.close()
                running.adopt_visible()
        finally:
            if self._state is running:  # it had hardly begun
                self._state = None
            lost = running.stop()
        return lost

    def record_span(self, span: Callable[[], object]) -> Trace:
        """Run `span` and return the trace of everything in it, as one iteration."""
        return self._running.record_span(span)

    def watch(self) -> AbstractContextManager[object]:
        """Show in one line on standard error how the session goes, for a `with` block inside the session's.

        On a terminal the line is written over, and gives way to what Python prints; elsewhere there is one every 10 s.

        Returns:
            A context manager. A thread that only reads figures shows the line until its block ends.
        """
        return Watch(lambda: self._state.status() if isinstance(self._state, Running) else None)

    def log_stats(self, path: str | os.PathLike[str], every: int = 1) -> AbstractContextManager[None]:
        """Append the statistics to a file at the ends of iterations, for a `with` block inside the session's.

        Each is one line, a JSON object: `stats`, the iteration's number, the seconds since the beginning, and what has
        been moved and waited for since the line before.

        Arguments:
            path: The file, relative to the folder that is the working one now.
            every: The number of iterations from one line to the next.

        Returns:
            A context manager. A disk that is full later is said once, and does not end training.

        Raises:
            InputError: The file cannot be written.
            UsageError: `every` is less than 1.
        """
        return self._logged(StatsLog(path, every))

    @contextmanager
    def _logged(self, log: StatsLog) -> Iterator[None]:
        running = self._running
        log.begin(running.status())
        running.stats_logs.append(log)
        try:
            yield
        finally:
            running.stats_logs.remove(log)

    def hold(self, tensor: torch.Tensor) -> Any:
        """Keep a tensor's bytes in memory for a `with` block, for code that reads them without an op.

        Arguments:
            tensor: A tensor of the session's device.

        Returns:
            A context manager. The bytes are in the arena, at one address, until its block ends.
        """
        return patching.held(self._running.engine, tensor)

    def end_iteration(self) -> None:
        """Say that an iteration ends here, in a loop without an optimizer of `torch.optim`.

        Such a loop's iterations are otherwise its forward passes without gradients, or are found when its ops have
        repeated themselves. The end of a step of torch's optimizers is seen anyway: where there is one, this does
        nothing.

        Raises:
            BudgetError: A share of the peak, which takes effect here, cannot be met.
            UsageError: The session has not begun, or has ended.
        """
        self._running.iterations.end_here()

    def is_outside(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the session's device, and its bytes can never be in the budget."""
        return any(map(self._is_outside, dense_parts(tensor)))

    def _is_outside(self, tensor: torch.Tensor) -> bool:
        engine = self._running.engine
        if tensor.device.type != self._settings.device.type or not patching.has_storage(tensor) or not tensor.numel():
            return False
        return engine.block_id(tensor) == -1 and not engine.may_leave(tensor)

    def read_bytes(self, storage: torch.UntypedStorage) -> bytes:
        """Copy a storage's bytes, wherever they are, without bringing them in and without an op.

        Arguments:
            storage: A storage of the session's device.

        Returns:
            All its bytes.

        Raises:
            ValueError: The storage has no bytes, as that of a gradient that torch knows to be all zeros.
        """
        return bytes(self._running.engine.read_bytes(storage, 0, storage.nbytes()))


def active_session() -> Session | None:
    """Return the session whose block this process is in; None if there is none.

    Any code may ask, whoever has begun the session: `memfit run`, or a `with` block. A forked child has none of its
    own unless it begins one.

    Returns:
        The session, or None.
    """
    entry = _entries.get(_ACTIVE)
    if entry is None or entry.session.began is None or engine.load().is_inert():
        return None
    return entry.session


def _one_of(kind: type[_Choice], text: str, complaint: str, usual: _Choice) -> _Choice:
    try:
        return kind(text)
    except ValueError:
        raise InputError(f"'{text}' {complaint}", why=f"there are {', '.join(kind)}", remedy=usual) from None


def session(budget: str | int | None, tier: str | TierSpec | None = None, *, device: str | torch.device = "auto",
            plan: bool | Plan = True, moves: str = "joint", grow: bool | None = None, plan_cache: bool = True,
            map: str = "auto", split: str = "auto", partition: str = "torch") -> Session:  # fmt: skip
    """Return a context manager that keeps every tensor storage of one device within a budget.

    Only one session can be active in a process. On leaving the block, every tensor has ordinary memory again.

    Arguments:
        budget: Bytes (an int, or text such as "2GiB") hold from the first op. A share such as "60%" is taken of the
            peak of live bytes of the first whole iteration, which runs without a limit, and holds from the next
            iteration. "auto" is what is free when the block begins, less a margin, and holds from the first op. None
            sets no limit.
        tier: The place of bytes that do not fit: "disk" or "disk:PATH" (a file; the default on the CPU), "ram" (a slab
            of memory; on a GPU page-locked host memory, and the default), "ram:8GiB", or "ram:8GiB+disk:PATH".
        device: "cpu", "cuda", "cuda:N", or "auto": the current GPU if there is one, otherwise the CPU.
        plan: True runs iterations that repeat by a plan: addresses from a table (SmartPool) and copies beside the ops
            (AutoSwap, both of arXiv 1903.06631). False never plans. A `Plan` is tried first.
        moves: What plans do with storages that are not in use: "swap" copies them to the tier and back, "recompute"
            drops them and has the ops that made them run again, "joint" does the cheaper of both.
        grow: Whether an op that does not fit gets more than the budget while it runs; otherwise it raises. None means
            True for a share, False for bytes.
        map: What becomes of an op that needs more than the budget at once. "auto" runs it on mapped storages: their
            bytes stay in the tier, and come in through page frames of the arena while the op reads and writes them;
            a GPU's kernels read and write them over its link.
            "never" makes it a BudgetError. "always" maps whatever may be, for tests.
        plan_cache: Whether plans of earlier runs are taken from disk, and this run's are kept there.
        split: "auto": an op that does not fit the budget at once runs in slices, where these were tried to give the
            same bits: after the op has run on mapped storages, or in an earlier run. "try": large ops are tried while
            there is no limit, too, which makes the first iteration several times slower. "never": none is split.
        partition: What a forward pass keeps for its backward pass, if `torch.compile` makes both in the session.
            "torch": what it would keep without one. "recompute": what takes longer to make again than to copy to the
            tier and back. That changes which ops are joined in a kernel, and with them roundings: the bits are those
            of the same graphs without a budget (`memfit verify --partition recompute` compares them).

    Returns:
        The session. It takes effect in a `with` block, and gives `stats` and `trace` also after it.

    Raises:
        InputError: The budget, the tier, the device, `moves`, `map`, `split` or `partition` is malformed.
        UsageError: On entering, another session is active.
        EngineError: On entering, the engine could not be built or loaded.
        BudgetError: From the op or the optimizer step that finds out that the budget cannot be met; on entering, if
            too little is free for "auto".
        TierError: From an op, or on leaving, when a copy fails.
        AccessError: From a call that is not an op and asks for bytes that are not in memory.
    """
    return Session(budget, tier, device=device, plan=plan, moves=moves, grow=grow, plan_cache=plan_cache,
                   map=map, split=split, partition=partition)  # fmt: skip
