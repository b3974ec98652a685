"""A process of its own: it stops another now and then, and tells what of its arena and page frames is in memory.

python -I count_pages.py PID ADDRESS SECONDS: a line "arena frames", in bytes, each so many seconds, until standard
input ends. ADDRESS lies in the arena.
"""

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let the process stand still, with all its threads. A shell whose job it is would take notice; others do not."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while not all(_state(task) in "Tt" for task in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.0005)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def counted(pid: int, inside: int) -> tuple[int, int]:
    """Return the bytes in memory of the mapping around `inside`, and those of page frames."""
    arena, frames, kind, resident = 0, 0, "", 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            begin, _, end = head.partition("-")
            kind = "arena" if int(begin, 16) <= inside < int(end, 16) else "file" if "/memfd:memfit" in rest else ""
        elif head == "Rss:":
            resident = 1024 * int(rest.split()[0])
            arena += resident if kind == "arena" else 0
        elif head == "VmFlags:" and kind == "" and "um" in rest.split():  # whose faults userfaultfd tells of
            frames += resident
    return arena, frames + sum(_files(pid))


def _files(pid: int) -> Iterator[int]:
    """Yield the bytes of the files in memory that frames are in where faults are signals."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith("/memfd:memfit"):
                yield 512 * os.stat(link).st_blocks


def main() -> None:
    """Count until standard input ends, or the process has."""
    pid, inside, every_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with contextlib.suppress(ProcessLookupError):
        while not select.select([sys.stdin], [], [], every_s)[0]:
            with stopped(pid):
                found = counted(pid, inside)
            print(*found, flush=True)


if __name__ == "__main__":
    main()
