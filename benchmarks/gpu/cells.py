"""One measurement in a process of its own, with a time limit: whatever it does, the caller gets an outcome back.

"fork" starts it from this process, which has imported what takes seconds but never touched the GPU; "spawn" from
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from benchmarks.gpu.perform import die_with, perform

LOG_CHARACTERS = 3000  # of what a failed cell printed
GRACE_S = 10.0  # for the system to take a killed process away

Request = dict[str, Any]
Outcome = dict[str, Any]


def run_cell(request: Request, limit_s: float, start: str = "fork") -> Outcome:
    """Run `request["call"]` ("module:function") and return what became of it within `limit_s` seconds.

    The outcome has "status" (ok, error, timeout or crash), "seconds", "result" (what the function returned, or had
    noted when it ended early), and after a failure "error" and "log".
    """
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        sys.stdout.flush()
        sys.stderr.flush()
        started = time.monotonic()
        cell = get_context(start).Process(target=_cell, args=(request, result, log, limit_s, os.getpid()))  # type: ignore[attr-defined]
        cell.start()
        outcome = _outcome(_exit_code(cell, limit_s), result, limit_s)
        outcome["seconds"] = round(time.monotonic() - started, 3)
        if outcome["status"] != "ok" and log.exists():
            outcome["log"] = _telling(log.read_text(errors="replace"))
        return outcome


def _cell(request: Request, result: Path, log: Path, limit_s: float, parent: int) -> None:
    """What the process does: its output goes to the log, and it ends without what a program does at its end."""
    code = 1
    try:
        os.setpgid(0, 0)
        die_with(parent)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)  # whatever they were in the runner
        code = perform(request, result, limit_s)
    finally:
        os._exit(code)


def _telling(log: str) -> str:
    """Return where a cell hung, innermost call first; or the end of what it printed."""
    at = log.rfind("Timeout (")
    return log[at : at + LOG_CHARACTERS] if at >= 0 else log[-LOG_CHARACTERS:]


def _exit_code(cell: BaseProcess, limit_s: float) -> int | None:
    """Return the process's exit code (negative: the signal that ended it), None when it had to be killed."""
    try:
        cell.join(limit_s)
        code = cell.exitcode
    except BaseException:
        _kill(cell)
        raise
    if code is None:
        _kill(cell)
        cell.join(GRACE_S)
    return code


def _kill(cell: BaseProcess) -> None:
    """Kill the process and what it started; itself alone while it has no group of its own yet."""
    assert cell.pid is not None
    try:
        os.killpg(cell.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        cell.kill()


def _outcome(code: int | None, result: Path, limit_s: float) -> Outcome:
    written: Outcome = json.loads(result.read_text()) if result.exists() else {"result": None}
    if code is None:
        return written | {"status": "timeout", "error": f"did not end within {limit_s:.0f} s"}
    if written.get("status") in ("ok", "error"):
        return written
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    return written | {"status": "crash", "error": f"the process ended with {how}"}
