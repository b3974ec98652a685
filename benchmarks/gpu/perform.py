"""What a cell's process runs: the function that its request names, its result or its error written as JSON."""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ERROR_CHARACTERS = 2000
_BEFORE_LIMIT_S = 2.0
_PR_SET_PDEATHSIG = 1

Note = Callable[[dict[str, Any]], None]


def perform(request: dict[str, Any], result: Path, limit_s: float) -> int:
    """Call `request["call"]` with the request and a function that notes what is known so far; return an exit code."""
    noted: dict[str, Any] = {}

    def note(partial: dict[str, Any]) -> None:
        noted.update(partial)
        _write(result, {"result": noted})

    # What one cell compiles is no other's, least of all when it was killed at it.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(result.parent / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(result.parent / "triton")
    # Where a cell that hangs was, in its log.
    faulthandler.enable(file=sys.stderr)
    faulthandler.dump_traceback_later(max(limit_s - _BEFORE_LIMIT_S, 0.1), file=sys.stderr)
    try:
        found = _function(request["call"])(request, note)
        _write(result, {"status": "ok", "result": noted | found})
        return 0
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        _write(result, {"status": "error", "error": describe(error), "result": noted or None})
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()


def die_with(parent: int) -> None:
    """End this process when `parent` ends, which may be killed at any time: nothing of it goes on using the GPU."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def describe(error: BaseException) -> str:
    """Return an error's type, text and the last lines it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = "; ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
    return f"{type(error).__name__}: {error} [{where}]"[:ERROR_CHARACTERS]


def _function(name: str) -> Callable[[dict[str, Any], Note], dict[str, Any]]:
    module, _, function = name.partition(":")
    found: Callable[[dict[str, Any], Note], dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found


def _write(path: Path, data: dict[str, Any]) -> None:
    """Whole or not at all: the process may be killed at any time."""
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(data))
    os.replace(beside, path)
