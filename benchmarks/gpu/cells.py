"""One measurement in a process of its own, with a time limit: whatever it does, the caller gets an outcome back.

"fork" starts it from this process, which has imported what takes seconds but never touched the GPU; "spawn" from
nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu.perform import die_with, perform

ROOT = Path(__file__).parents[2]
LOG_CHARACTERS = 3000  # of what a failed cell printed
GRACE_S = 10.0  # for the system to take a killed process away
_POLL_S = 0.01

Request = dict[str, Any]
Outcome = dict[str, Any]


def run_cell(request: Request, limit_s: float, start: str = "fork") -> Outcome:
    """Run `request["call"]` ("module:function") and return what became of it within `limit_s` seconds.

    The outcome has "status" (ok, error, timeout or crash), "seconds", "result" (what the function returned, or had
    noted when it ended early), and after a failure "error" and "log".
    """
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as folder:
        result, log = Path(folder) / "result.json", Path(folder) / "log"
        started = time.monotonic()
        launch = _fork if start == "fork" else _spawn
        pid = launch(request, result, log, limit_s)
        code = _wait(pid, limit_s)
        outcome = _outcome(code, result, limit_s)
        outcome["seconds"] = round(time.monotonic() - started, 3)
        if outcome["status"] != "ok" and log.exists():
            outcome["log"] = _telling(log.read_text(errors="replace"))
        return outcome


def _telling(log: str) -> str:
    """Return where a cell hung, innermost call first; or the end of what it printed."""
    at = log.rfind("Timeout (")
    return log[at : at + LOG_CHARACTERS] if at >= 0 else log[-LOG_CHARACTERS:]


def _fork(request: Request, result: Path, log: Path, limit_s: float) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _become_cell(log, parent)
        code = perform(request, result, limit_s)
    finally:
        os._exit(code)


def _spawn(request: Request, result: Path, log: Path, limit_s: float) -> int:
    command = [sys.executable, "-m", "benchmarks.gpu.perform", json.dumps(request), str(result), str(limit_s),
               str(os.getpid())]  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, process_group=0)
    process.returncode = 0  # it is waited for by its number, below
    return process.pid


def _become_cell(log: Path, parent: int) -> None:
    os.setpgid(0, 0)
    die_with(parent)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)  # whatever they were in the runner


def _wait(pid: int, limit_s: float) -> int | None:
    """Return the process's exit code (negative: the signal that ended it), None when it had to be killed."""
    try:
        code = _exit_code(pid, limit_s)
    except BaseException:
        _kill(pid)
        raise
    if code is None:
        _kill(pid)
        _exit_code(pid, GRACE_S)
    return code


def _exit_code(pid: int, seconds: float) -> int | None:
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(_POLL_S)


def _kill(pid: int) -> None:
    kill: Callable[[int, int], None]
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        return


def _outcome(code: int | None, result: Path, limit_s: float) -> Outcome:
    written: Outcome = json.loads(result.read_text()) if result.exists() else {"result": None}
    if code is None:
        return written | {"status": "timeout", "error": f"did not end within {limit_s:.0f} s"}
    if written.get("status") in ("ok", "error"):
        return written
    how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
    return written | {"status": "crash", "error": f"the process ended with {how}"}
