"""The memory that this machine, this container and this process may have, and the most that it has had."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_FIRST_VERSION = "memory.limit_in_bytes"  # of control groups


def host_memory_bytes() -> int:
    """Return the memory of this machine, or the part of it that this process's container may have (bytes)."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_cgroup_limits()])


def reservable_bytes() -> int:
    """Return the memory that may be reserved, and used later: all of the machine's, as far as addresses reach.

    Where addresses are limited (`ulimit -v`, or no overcommitment) it is a third of what is left: an arena and a tier
    may each take that, and all else needs some too.
    """
    return min([host_memory_bytes(), *(left // 3 for left in _addresses_left())])


def unlimited_arena_bytes(device_type: str) -> int:
    """Return the size of an arena that has no budget yet; 0 for as much as the device has."""
    return reservable_bytes() if device_type == "cpu" else 0


def peak_rss_bytes() -> int:
    """Return the most memory this process has had, as the system counts it."""
    # Not getrusage: what a process had before it became this one by exec counts there.
    peak = _table("/proc/self/status").get("VmHWM")
    return peak if peak is not None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _addresses_left() -> Iterator[int]:
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield max(soft - _table("/proc/self/status").get("VmSize", 0), 0)
    if _text("/proc/sys/vm/overcommit_memory").strip() == "2":
        memory = _table("/proc/meminfo")
        yield max(memory.get("CommitLimit", 0) - memory.get("Committed_AS", 0), 0)


def available_bytes() -> int:
    """Return the memory that this process may still take without any being swapped or anyone killed.

    Cached files count as free, in the machine and in its container; of limited addresses only a third does.
    """
    machine = _table("/proc/meminfo").get("MemAvailable", host_memory_bytes())
    return max(min([machine, *_left_in_groups(), *(left // 3 for left in _addresses_left())]), 0)


def _left_in_groups() -> Iterator[int]:
    # Beyond memory.high nobody is killed, but all wait while the kernel takes memory away.
    for folder, limit in _limited_groups("memory.max", "memory.high"):
        usage, cached = "memory.current", "inactive_file"
        if limit.name == _FIRST_VERSION:
            usage, cached = "memory.usage_in_bytes", "total_inactive_file"
        used = _text(folder / usage).strip()
        if used.isdigit():
            rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
            files = sum(int(row[1]) for row in rows if row[:1] == [cached])
            yield int(_text(limit)) - int(used) + files


def _cgroup_limits() -> Iterator[int]:
    """Yield the limit of every control group this process is in, its own and those above it."""
    for _, limit in _limited_groups("memory.max"):
        yield int(_text(limit))


def _limited_groups(*names: str) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of each control group that limits memory, and the file with its limit.

    `names`: the files of version 2 that count.
    """
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        folder, files = _CGROUPS, names
        if controllers:  # version 1
            folder, files = _CGROUPS / "memory", (_FIRST_VERSION,)
        if controllers and "memory" not in controllers.split(","):
            continue
        path = Path(group.lstrip("/"))
        for part in (path, *path.parents):
            for limit in (folder / part / name for name in files):
                if _text(limit).strip().isdigit():
                    yield limit.parent, limit


def is_in_memory(folder: str) -> bool:
    """Return whether the files of `folder` are in memory (tmpfs), as those of /tmp are on some systems.

    Those of a folder that is not there are not: whoever wants to write to it says so.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = (line.partition(" - ") for line in _text("/proc/self/mountinfo").splitlines())
    return any(about.split()[2] == number and kind.split()[0] in ("tmpfs", "ramfs") for about, _, kind in mounts)


def _table(path: str) -> dict[str, int]:
    """Return the rows "name: N kB" of one of the kernel's files, in bytes."""
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if len(row) == 3 and row[2] == "kB"}


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except (OSError, ValueError):
        return ""


def give_back_freed() -> None:
    """Give freed pages that the C library keeps back to the system, where it can be asked to."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
