"""How much memory there is, by what the kernel says."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from memfit.running import host

GIB = 1 << 30


@pytest.fixture
def kernel(monkeypatch, tmp_path) -> dict[str, str]:
    """The kernel's files, by path; those of control groups in a folder."""
    files: dict[str, str] = {}
    monkeypatch.setattr(host, "_text", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 16 << 18, "SC_PAGE_SIZE": 4096}[name])
    return files


def test_without_limits_it_is_the_machines(kernel):
    kernel["/proc/self/cgroup"] = "0::/a/b\n"
    kernel["/sys/fs/cgroup/a/b/memory.max"] = "max\n"
    assert host.host_memory_bytes() == host.reservable_bytes() == 16 * GIB
    assert host.unlimited_arena_bytes("cpu") == 16 * GIB and host.unlimited_arena_bytes("cuda") == 0


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/a/b\n", "/sys/fs/cgroup/a/b/memory.max"),
        ("0::/a/b\n", "/sys/fs/cgroup/a/memory.max"),
        ("0::/\n", "/sys/fs/cgroup/memory.max"),
        ("12:cpu:/x\n11:memory:/a\n", "/sys/fs/cgroup/memory/a/memory.limit_in_bytes"),
    ],
)
def test_a_containers_limit_counts_also_one_of_a_group_above(kernel, groups, file):
    kernel["/proc/self/cgroup"] = groups
    kernel[file] = f"{2 * GIB}\n"
    assert host.host_memory_bytes() == 2 * GIB


def test_limited_addresses_leave_room_for_an_arena_a_tier_and_all_else(kernel, monkeypatch):
    kernel["/proc/self/status"] = f"Name:\tpython\nVmSize:\t{6 << 20} kB\nVmHWM:\t1024 kB\n"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (9 * GIB, resource.RLIM_INFINITY))
    assert host.reservable_bytes() == GIB
    kernel["/proc/sys/vm/overcommit_memory"] = "2\n"
    kernel["/proc/meminfo"] = "CommitLimit:  4096 kB\nCommitted_AS:  1024 kB\nHugePages_Total:  0\n"
    assert host.reservable_bytes() == 1 << 20
    assert host.peak_rss_bytes() == 1 << 20


def test_a_folder_in_memory_is_known_by_its_mount(kernel, tmp_path):
    device = os.stat(tmp_path).st_dev
    number, other = f"{os.major(device)}:{os.minor(device)}", f"{os.major(device)}:{os.minor(device) + 1}"
    rest = f"29 1 {other} / /mnt rw,relatime shared:5 - tmpfs tmpfs rw"
    kernel["/proc/self/mountinfo"] = f"28 1 {number} / / rw,relatime - ext4 /dev/vda rw\n{rest}\n"
    assert not host.is_in_memory(str(tmp_path))
    kernel["/proc/self/mountinfo"] = f"28 1 {number} / /tmp rw shared:7 master:1 - tmpfs tmpfs rw,size=9k\n{rest}\n"
    assert host.is_in_memory(str(tmp_path))
    assert not host.is_in_memory(str(tmp_path / "gone"))
    kernel.clear()
    assert not host.is_in_memory(str(tmp_path))


def test_the_peak_is_of_this_process_and_not_of_the_one_it_was_before():
    big = bytearray(200 << 20)
    big[::4096] = b"x" * len(big[::4096])
    program = "from memfit.running.host import peak_rss_bytes; print(peak_rss_bytes())"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=lambda: None, timeout=60)
    assert 0 < int(done.stdout) < len(big) < host.peak_rss_bytes()
