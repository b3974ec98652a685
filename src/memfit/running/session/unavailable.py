"""memfit's error in place of torch's own, which an access to a storage without bytes ended in."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from memfit.errors import AccessError, BudgetError, MemfitError, TierError, UsageError
from memfit.running.engine import EngineModule

_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).parent), str(Path(__file__).parents[2])}
)


def typed(engine: EngineModule, error: RuntimeError, failure: Mapping[str, Any]) -> MemfitError | None:
    """Return memfit's error for torch's, None if it is another; `failure` is the last that the engine had.

    Drops the native stack that torch puts behind some of its messages.
    """
    met = "" if isinstance(error, MemfitError) else engine.met_in(str(error))
    if not met:
        return None
    error.args = (str(error).split("\nException raised from ")[0],)
    if met == "absent":
        return _no_op(error)
    kind = TierError if met == "lost" or failure["kind"] == "tier" else BudgetError
    return kind(str(error) if met == "lost" else failure["message"] or str(error))


def _no_op(error: RuntimeError) -> MemfitError:
    frames = [*_frames(error.__traceback__)]
    source = next((_place(*at) for at in reversed(frames) if _is_users(at[0])), "")
    where = f", at {source}" if source else ""
    if any(_is_compiled(frame) for frame, _ in frames):
        return UsageError(
            f"this use of torch.compile does not work in a session: a kernel met a tensor that is moved out{where}",
            why="memfit brings back what ops and inductor's kernels use, and it does not see this kernel",
            remedy="leave torch.compile out, or use its backend 'eager' or 'aot_eager'",
        )
    door = "TorchScript" if "TorchScript interpreter" in str(error) else _door(frames)
    return AccessError(
        f"something that is not an op asked for the bytes of a tensor that is moved out{where}",
        why=f"{door} reads or writes memory in a way that memfit does not see, or not yet",
        remedy="file an issue with this message; in Python, put `with session.hold(tensor):` around that line",
        source=source,
        door=door,
    )


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith("<") and not file.startswith("<ipython-input-"):  # a cell of IPython's
        return False
    return not file.startswith(_LIBRARIES) and not _is_compiled(frame)


def _is_compiled(frame: FrameType) -> bool:
    """Return whether it is of torch.compile, or of the Python that it writes to call its kernels from."""
    module = str(frame.f_globals.get("__name__"))
    return module.startswith("torch._inductor.") or {"extern_kernels", "assert_size_stride"} <= frame.f_globals.keys()


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line}"


def _door(frames: list[tuple[FrameType, int]]) -> str:
    """Return the innermost call that is not memfit's own."""
    own = str(Path(__file__).parents[2])
    others = [at for at in frames if not at[0].f_code.co_filename.startswith(own)]
    return f"{others[-1][0].f_code.co_name} ({_place(*others[-1])})" if others else "it"
