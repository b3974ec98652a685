"""The engine's module as Python sees it: every function that native/engine/bindings defines, with its types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Literal, Protocol, TypedDict

import torch

from memfit.planning.addresses import TakeColumns

OpHash = Callable[[str, bool], int]
"""`EngineModule.op_hash`."""
Tables = dict[str, Any]
"""Rows of int64 as bytes, by the table's name; `columns` has the names of each table's columns."""

SplitAnswer = tuple[str, int, int, int, list[tuple[int, list[int], list[int]]], list[tuple[int, int]]]
"""A call that was tried in slices: its op, its key, the window that it needs when it runs whole, and the bytes that it
allocates then; the type, the sizes and the strides of each output; the ways in which it may be cut, and the lengths of
slices that gave the same bits."""


TriedCall = tuple[bool, int, bool, int]
"""A call that was tried: whether over one of its inputs, or once more; its key; whether its outputs came out the same;
and how long it took once more (ns; 0: not known)."""


class SwapTableColumns(TypedDict):
    """The swaps of a plan, as `EngineModule.use_plan` reads them (native/engine/plan_columns.cpp).

    Integers >= 0. Op indices lie within the iteration, whichever iteration a swap ends in.
    """

    op_hashes: list[int]
    """`op_hash` of each op of the iteration, in order, those that run again too."""
    block: list[int]
    """The number of the block, or 0 for a storage that each iteration makes anew; a row for each swapped storage."""
    ordinal: list[int]
    """The number of the allocation in the iteration, if `block` is 0; a row for each swapped storage."""
    bytes: list[int]
    """Bytes of the storage, as it was asked for; a row for each swapped storage."""
    again: list[int]
    """1 more than the op that runs again and allocates it, in which `ordinal` counts; 0 for one of the program's; a row
    for each swapped storage, as in those above."""
    storage: list[int]
    """The row of the storage in the columns above; a row for each swap, as in those that follow."""
    out_after: list[int]
    """The op after which the copy out begins."""
    free_by: list[int]
    """The op that waits for the copy out."""
    in_start: list[int]
    """The op before which the copy in begins."""
    take: list[int]
    """1 more than the take of the iteration that gives the storage its address back; 0 for one that does not return."""
    map_op: list[int]
    """An op that uses a storage where it waits; a row for each such use."""
    map_storage: list[int]
    """The row of that storage in the columns above; rows as of `map_op`."""


class RemakeTableColumns(TypedDict):
    """The drops of a plan, as `EngineModule.use_plan` reads them (native/engine/plan_columns.cpp).

    Integers >= 0. Ops are those of the iteration with remakings, storages the rows of the swaps' columns.
    """

    repeats: list[int]
    """1 more than the op that an op repeats, 0 for the program's own; a row for each op, or none without drops."""
    storage: list[int]
    """The storage that is dropped; a row for each drop, as in those that follow."""
    after: list[int]
    """The op after which its bytes go."""
    before: list[int]
    """The op before which they are made again."""
    take: list[int]
    """1 more than the take of the iteration that gives the bytes that were made again their address; 0: none are."""
    kept: list[int]
    """The ops of the program whose calls are to be kept, for what hands over its place or is dropped for good."""
    carried: list[int]
    """The number of a storage's allocation in the iteration; a row for each dropped one that outlives it."""
    last_take: list[int]
    """The take that gives it its last place in the iteration; rows as above."""


class Hold(AbstractContextManager[None], Protocol):
    """The bytes of storages kept in memory until this goes, or its `with` block ends."""

    def release(self) -> None:
        """Let go of them now."""

    def pin(self) -> None:
        """Keep them where they are until they die."""


class EngineModule(Protocol):
    """The engine: one for the process, and one session of it at a time."""

    # Called when the engine is loaded.
    def set_error_types(self, budget_error: type[Exception], tier_error: type[Exception]) -> None:
        """Set the exceptions to raise."""

    def set_library_folders(self, folders: Sequence[str]) -> None:
        """Set the folders below which a frame is not the user's code."""

    def on_notice(self, action: Callable[[str], None]) -> None:
        """Set the function that tells the user a line."""

    # A session.
    def start(
        self, device: str, budget_bytes: int, most_bytes: int, grows: bool, tier: Mapping[str, Any],
        disturbance: Mapping[str, Any], others: bool,
    ) -> None:  # fmt: skip
        """Begin a session (0: no budget). `most_bytes`: of an arena without one. `others`: other threads run."""

    def stop(self) -> dict[str, Any]:
        """End the session; returns `restored` and `left_in_arena`, counts of storages, and `lost`, a list of texts."""

    def active(self) -> bool:
        """Return whether a session is active."""

    def is_inert(self) -> bool:
        """Return whether this is a forked child with its parent's session, which it only reads."""

    def stats(self) -> dict[str, int]:
        """Return the session's figures, as of `Stats`."""

    def reset_peaks(self) -> None:
        """Count every peak from here on."""

    def set_budget(self, budget_bytes: int) -> None:
        """Set the arena's limit, and move what lies beyond it."""

    def check(self) -> None:
        """Raise RuntimeError if the books of the session's arena contradict themselves: for tests."""

    def set_peak(self, peak_bytes: int) -> None:
        """Set the peak that shares in messages refer to."""

    def allow_growth(self, allowed: bool) -> None:
        """Set whether an op that does not fit gets more than the budget."""

    def set_mapping(self, when: str, mechanism: str = "", dies_after: int = 0) -> None:
        """Set when storages are mapped: "never", "auto" (an op does not fit) or "always".

        For tests: by `mechanism` alone ("userfaultfd" or "signals", whose thread ends after so many faults; on a GPU
        "zero-copy" or "managed").
        """

    def mapping(self, budget_bytes: int) -> str:
        """Return how ops see what is mapped in such a budget: "direct" in the tier, through "frames", or "never"."""

    def allow_splits(self, allowed: bool, tries_ahead: bool, forced: bool, planned_for: bool = False) -> None:
        """Set whether ops that do not fit run in slices; `forced`, for tests: those too that do.

        `tries_ahead`: large ones are tried while there is no limit, too, which takes time. `planned_for`: plans are
        made of recorded iterations, in which ops therefore run whole where they can be mapped.
        """

    def split_answers(self) -> list[SplitAnswer]:
        """Return of which calls it was tried whether slices give the same bits."""

    def know_splits(self, rows: list[SplitAnswer]) -> None:
        """Let what was tried be this, as `split_answers` returned it."""

    def allow_drops(self, out_gb_per_s: float, in_gb_per_s: float) -> None:
        """Let what has to leave without a plan be dropped where it is known to come out the same when it is made again.

        That has to take less time than its copies over a link of these speeds (10^9 bytes a second). It is tried on a
        GPU alone; elsewhere nothing happens.
        """

    def tried_calls(self) -> list[TriedCall]:
        """Return of which calls it was tried whether they come out the same over an input, or once more."""

    def know_tried_calls(self, rows: list[TriedCall]) -> None:
        """Let that be known beside what has been tried: rows that `tried_calls` has returned, of the same device."""

    def alignment(self) -> int:
        """Return the alignment of storages: every offset is a multiple of it (bytes)."""

    def page_bytes(self, offset: int) -> int:
        """Return the unit in which the device gives out memory at an offset of the arena (bytes)."""

    def last_failure(self) -> dict[str, Any]:
        """Return the last op that could not have its bytes: `kind` ("", "budget" or "tier"), `message`, `op`, ..."""

    def met_in(self, message: str) -> Literal["", "absent", "lost", "refused"]:
        """Return the state of the storage that torch's own error of that message met: its bytes were `absent`, since
        not an op asked, or are `lost`, or could not be had (`refused`), as `last_failure` says; "" if none of these.
        """

    def fail_next(self, message: str, required_bytes: int) -> None:
        """Have the next allocation raise this."""

    def undisturbed(self, action: Callable[..., Any], undo: Callable[[], Any] | None, *args: Any) -> Any:
        """Call `action` with signals' handlers put off until it is done; `undo` follows where either has raised."""

    # Storages.
    Hold: Callable[..., Hold]

    def adopt(self, tensors: Sequence[Any]) -> None:
        """Show the engine some tensors or storages."""

    def map_storage(self, target: Any) -> bool:
        """Map a tensor's storage whenever an op uses it; False if it is none of the session's, or none may be."""

    def adopt_visible(self) -> None:
        """Show the engine every tensor that Python can see."""

    def release_cached(self) -> None:
        """Let the device's own allocator give back what it keeps of adopted storages."""

    def warm_up(self) -> None:
        """Let libraries take the workspaces that they keep for good at the low end; small storages lie above."""

    def has_instance(self, type: type[Any]) -> bool:
        """Return whether anything is one that the garbage collector knows of."""

    def drop_bytes(self, target: Any) -> bool:
        """Drop the bytes of a storage that stays, if they are away; return whether they were."""

    def answer_for_aliases(self) -> bool:
        """Have C++ ask the engine whether storages share their bytes, for good; return whether all of torch does."""

    def begin_to_keep(self) -> None:
        """Have what the calling thread allocates stay where it is."""

    def end_keeping(self, for_good: bool) -> None:
        """Let what it has allocated since then move; or, with `for_good`, stay until it dies."""

    def collective_is_over(self, work: Any) -> None:
        """Say that a collective's Work has been waited for."""

    def coalesce_collectives(self, on: bool) -> None:
        """Set whether the collectives that follow are launched as one, whose end their Works do not know."""

    def read_bytes(self, target: Any, offset: int, size_bytes: int) -> bytes:
        """Return a part of a storage's bytes, wherever they are."""

    def block_id(self, target: Any) -> int:
        """Return the number of a tensor's or storage's block; -1 if it has none."""

    def is_resident(self, target: Any) -> bool:
        """Return whether a storage's bytes are in the arena, or never left ordinary memory."""

    def may_leave(self, target: Any) -> bool:
        """Return whether a storage's bytes may lie elsewhere after the next op."""

    def is_operand(self, target: Any) -> bool:
        """Return whether the op that runs in this thread uses the storage's bytes until it ends."""

    def place_of(self, target: Any) -> tuple[int, int] | None:
        """Return what a storage's bytes belong to, wherever they move: a `_cdata`, and their offset in that storage.

        None for memory that no session moves.
        """

    def in_use(self) -> list[int]:
        """Return counts that are 0 while no op runs: of frames, of storages in use and of those set aside."""

    # Iterations, and recordings of them.
    def set_phase(self, phase: str) -> None:
        """Say which part of the iteration ops belong to from here on: "forward" or "optimizer"."""

    def boundary(self, is_step: bool = True) -> None:
        """Say that an iteration ends here: with a step, after which only steps do, or with a forward pass."""

    def recorded_backward(self) -> bool:
        """Return whether an op of a backward pass has been recorded since the recording began."""

    def on_period(self, action: Callable[[], None]) -> None:
        """Say whom to call, until the session ends, when the ops have repeated themselves."""

    def reject_period(self) -> None:
        """Say that the period found is not an iteration: wait for `boundary`."""

    def signatures(self) -> list[int]:
        """Return a hash for each of the last iterations, the latest last."""

    def signature_counts(self) -> dict[int, int]:
        """Return the number of iterations of each signature."""

    def start_recording(self, at_boundary: bool = False) -> None:
        """Record from here on; `at_boundary`: an iteration begins now, whose beginning is marked as ends are."""

    def stop_recording(self) -> Tables:
        """Return the recording, as `RawRecording.of` reads it."""

    def recording_so_far(self) -> Tables:
        """Return what `stop_recording` would return now; the recording goes on."""

    def recorded_ticks(self) -> int:
        """Return the number of allocations and frees that have been recorded; 0 while nothing is."""

    def watch_meta(self) -> None:
        """Record storages of device meta too, for the rest of the session."""

    def note_shapes(self) -> None:
        """Record the shapes of every op's tensors, for the rest of the session."""

    def iteration_marks(self) -> list[int]:
        """Return the counts of recorded ops at which iterations ended."""

    def tick_marks(self) -> list[int]:
        """Return the counts of allocations and frees at the same ends."""

    # Plans.
    def use_plan(
        self, takes: TakeColumns, zone_bytes: int, iterations: int, swaps: SwapTableColumns,
        remakes: RemakeTableColumns, resident: Sequence[int], at_boundary: bool, is_another: bool = False,
        zone_offset: int | None = None, kind: int = 0,
    ) -> bool:  # fmt: skip
        """Run iterations by a plan; returns whether there is room for it.

        `zone_bytes` is the length of the zone, `iterations` the number of iterations in a period of `takes`.
        `resident` are the blocks of storages that stay below the zone. `at_boundary`: an iteration begins now;
        `is_another`: of another kind than the last one. `zone_offset` is the zone's place in the arena, where what is
        immovable may lie between its slots; None: anywhere. `kind` is the signature of the iterations, by which it is
        remembered what has come back the same in the plan, for when it is in force again; 0: it is not. Raises
        ValueError for columns that contradict each other.
        """

    def immovable(self) -> list[tuple[int, int, int]]:
        """Return what cannot move in the arena, the shelf left out: offset and size in bytes, and the block."""

    def has_plan(self) -> bool:
        """Return whether a plan is in force."""

    def drop_plan(self) -> None:
        """Run on without the plan in force."""

    def tried_drops(self) -> tuple[int, list[tuple[int, str]]]:
        """Return how many of the last plan's drops are untried, and the number and reason of each that cannot be."""

    def refused_handovers(self) -> list[int]:
        """Return the last plan's ops at which an input was to give its place to an output, and did not."""

    def op_hash(self, name: str, with_grad: bool) -> int:
        """Return the hash by which a plan names an op; `with_grad`: gradients are computed there."""

    def start_timeline(self) -> None:
        """Note what ops and copies do from here on."""

    def stop_timeline(self) -> Tables:
        """Return the notes, as `measured_timeline` reads them."""

    def measure_tier(self, kind: str, folder: str, size_bytes: int, repeats: int) -> tuple[float, float, float, float]:
        """Return the seconds of a copy out, in, and of each with the other way busy."""

    # Doors to storages that are not ops.
    def original_of(self, function: Any) -> Any:
        """Return a C function that calls `function` past its redirection."""

    def redirect(self, function: Any, to: Callable[..., Any] | None) -> None:
        """Have every call of a C function go elsewhere; None: no more."""

    def kernel_as_op(
        self, kernel: Callable[..., Any], name: str, tensors: Sequence[bool], writes: Sequence[bool]
    ) -> Callable[..., Any]:
        """Return what calls a kernel as an op: by positional argument, which are tensors, and which it writes to.

        Keywords are no operands. What it returns raises BudgetError when the tensors cannot all be there.
        """

    def call_as_op(self, function: Callable[..., Any], name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a compiled function with its tensors in memory until it returns, as an op that may write to each.

        Raises BudgetError when they cannot all be there.
        """

    def libraries_with_torch(self) -> list[str]:
        """Return the paths of the loaded libraries that need one of torch's."""

    def parts_of(self, paths: Sequence[str]) -> tuple[list[Any], list[ModuleType]]:
        """Return the C functions whose code is in one of the libraries, and the modules that were loaded from them."""

    def forget_operators(self) -> None:
        """Look at each operator anew when it is next called: a kernel has been registered, or taken back."""

    def watch_nodes(self, on: bool) -> None:
        """Bring in the inputs of autograd's nodes, for a profiler that asks for their addresses."""

    def watch_exchange(self, capsule: Any, on: bool) -> None:
        """Pin the tensors that leave by DLPack's table of functions."""

    def script_tensors(self, module: torch.ScriptModule) -> list[torch.Tensor]:
        """Return every tensor in a TorchScript module."""

    # For benchmarks.
    def observe_idly(self, on: bool) -> None:
        """Have torch tell an observer of each op that wants what the engine's does, and does nothing."""

    # For tests.
    def trust_registered_kernels(self, on: bool) -> None:
        """Take kernels that are registered from now on for torch's own."""

    def set_stress(self, kind: str) -> None:
        """Have whatever may move leave ("evict"), move ("move") or be discarded ("recompute") before every op, or
        whatever may be split run in slices ("split"); "" stops that.
        """

    def surroundings(self) -> dict[str, int]:
        """Return what decides what an op computes besides its inputs, by name, in numbers."""

    def within(self, surroundings: Mapping[str, int], action: Callable[[], object]) -> object:
        """Return what `action` returns with these of the surroundings set, which are as before afterwards."""

    def set_witness(self, on: bool) -> None:
        """Have every operator's arguments compared before and after it."""

    def testimonies(self) -> dict[str, tuple[int, int, set[str]]]:
        """Return what operators were seen to do, by name.

        The number of calls, that of calls that changed an argument which the operator is not said to write to, and the
        names of all arguments that were changed.
        """

    def composites(self) -> dict[str, tuple[int, int]]:
        """Return what composite operators were seen to do, by name.

        The number of calls, and that of calls in which bytes were written by no operator that was called.
        """
