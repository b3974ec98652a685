"""One measurement in a process of its own, with a time limit: whatever it does, the caller gets an outcome back.

"fork" starts it from this process, which has imported what takes seconds but never touched the GPU; "spawn" from
nothing.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common.result import write_json
from benchmarks.gpu.virtual import SLOWER, begin, elapsed_s, is_simulated

_LOG_CHARACTERS, _ERROR_CHARACTERS = 3000, 2000  # that are kept of what a failed cell printed, and of its error
_GRACE_S = 10.0  # for the system to take a killed process away
_BEFORE_LIMIT_S = 2.0  # a cell that hangs says where it is
_PR_SET_PDEATHSIG = 1

Request = dict[str, Any]
Outcome = dict[str, Any]
Note = Callable[[dict[str, Any]], None]


def run_cell(request: Request, limit_s: float, start: str = "fork") -> Outcome:
    """Run `request["call"]` ("module:function") and return what became of it within `limit_s` seconds.

    The function gets the request and a function that notes what is known so far. The outcome has "status" (ok, error,
    timeout or crash), "seconds", "result" (what the function returned, or had noted when it ended early), and after a
    failure "error" and "log".
    """
    limit_s *= SLOWER if is_simulated() else 1
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        sys.stdout.flush()
        sys.stderr.flush()
        began = time.monotonic()
        cell = get_context(start).Process(target=_cell, args=(request, result, log, limit_s, os.getpid()))  # type: ignore[attr-defined]
        cell.start()
        try:
            cell.join(limit_s)
            outcome = _outcome(cell.exitcode, result, limit_s)
        finally:
            if cell.is_alive():
                _kill(cell.pid)
                cell.join(_GRACE_S)
        outcome["seconds"] = round(time.monotonic() - began, 3)
        if outcome["status"] != "ok" and log.exists():
            text = log.read_text(errors="replace")
            hung = text.rfind("Timeout (")  # from there on, innermost call first
            outcome["log"] = text[hung:][:_LOG_CHARACTERS] if hung >= 0 else text[-_LOG_CHARACTERS:]
        return outcome


def _outcome(code: int | None, result: Path, limit_s: float) -> Outcome:
    """Return what was written, with how the process ended; `code` None is not at all, a negative one by a signal."""
    written: Outcome = json.loads(result.read_text()) if result.exists() else {"result": None}
    if code is None:
        return written | {"status": "timeout", "error": f"did not end within {limit_s:.0f} s"}
    if "status" in written:
        return written
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    return written | {"status": "crash", "error": f"the process ended with {how}"}


def _kill(pid: int) -> None:
    """Kill the process and what it started; itself alone while it has no group of its own yet."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _cell(request: Request, result: Path, log: Path, limit_s: float, parent: int) -> None:
    """What the process does: its output goes to the log, and it ends without what a program does at its end."""
    code = 1
    try:
        os.setpgid(0, 0)
        # It ends when the runner does, which may be killed at any time: nothing of it goes on using the GPU.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)  # whatever they were in the runner
        if os.getppid() == parent:
            code = _perform(request, result, limit_s)
    finally:
        os._exit(code)


def _perform(request: Request, result: Path, limit_s: float) -> int:
    """Call the request's function, and write its result or its error; return an exit code."""
    noted: dict[str, Any] = {}

    def note(partial: dict[str, Any]) -> None:
        noted.update(partial)
        write_json(result, {"result": noted})

    # What one cell compiles is no other's, least of all when it was killed at it.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(result.parent / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(result.parent / "triton")
    faulthandler.enable(file=sys.stderr)
    faulthandler.dump_traceback_later(max(limit_s - _BEFORE_LIMIT_S, 0.1), file=sys.stderr)
    try:
        if is_simulated():
            begin().in_session("budget_bytes" in request)
        module, _, function = request["call"].partition(":")
        found = getattr(importlib.import_module(module), function)(request, note)
        if (seconds := elapsed_s()) is not None:
            found |= {"simulated_s": seconds}
        write_json(result, {"status": "ok", "result": noted | found})
        return 0
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        write_json(result, {"status": "error", "error": describe(error), "result": noted or None})
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()


def describe(error: BaseException) -> str:
    """Return an error's type, text and the last lines it came through."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    where = "; ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames)
    return f"{type(error).__name__}: {error} [{where}]"[:_ERROR_CHARACTERS]
