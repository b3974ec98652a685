"""A process of its own: it stops another now and then, and tells what of its arena and page frames is in memory.

python -I count_pages.py PID ADDRESS BYTES SECONDS: a line "arena frames", in bytes, each so many seconds, until
standard input ends. ADDRESS lies in the arena's first page. (The system may show it as one with mappings beside it.)
"""

import array
import contextlib
import mmap
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


def present(pid: int, begin: int, size: int) -> int:
    """Return the bytes that are in memory of those from the page of `begin` on."""
    first, count = begin // mmap.PAGESIZE, -(-size // mmap.PAGESIZE)
    with open(f"/proc/{pid}/pagemap", "rb") as entries:
        entries.seek(8 * first)
        pages = array.array("Q", entries.read(8 * count))
    return mmap.PAGESIZE * sum(page >> 63 for page in pages)


def counted(pid: int, begin: int, size: int) -> tuple[int, int]:
    """Return the bytes in memory of the arena, and those of page frames."""
    frames, is_file, resident = 0, False, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head, _, rest = line.partition(" ")
        if not head.endswith(":"):
            is_file = "/memfd:memfit" in rest
        elif head == "Rss:":
            resident = 1024 * int(rest.split()[0])
        elif head == "VmFlags:" and not is_file and "um" in rest.split():  # whose faults userfaultfd tells of
            frames += resident
    return present(pid, begin, size), frames + sum(_files(pid))


def _files(pid: int) -> Iterator[int]:
    """Yield the bytes of the files in memory that frames are in where faults are signals."""
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(link).startswith("/memfd:memfit"):
                yield 512 * os.stat(link).st_blocks


def main() -> None:
    """Count until standard input ends, or the process has."""
    pid, begin, size, every_s = (*map(int, sys.argv[1:4]), float(sys.argv[4]))
    with contextlib.suppress(ProcessLookupError):
        while not select.select([sys.stdin], [], [], every_s)[0]:
            with stopped(pid):
                found = counted(pid, begin, size)
            print(*found, flush=True)


if __name__ == "__main__":
    main()
