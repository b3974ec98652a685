"""The budget "auto" is what is free when the session begins, less what else will need memory."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

import memfit
from memfit.errors import BudgetError, InputError
from memfit.running import host
from memfit.running.engine import tiers
from memfit.running.engine.tiers import TierSpec
from memfit.running.session.free import auto_budget, rounded
from memfit.units import is_auto, parse_budget
from running.plainly import as_plainly, train_by_hand

GIB, MIB = 1 << 30, 1 << 20
CPU = torch.device("cpu")


@pytest.fixture
def free(monkeypatch):
    def have(size_bytes: int) -> None:
        monkeypatch.setattr(host, "available_bytes", lambda: size_bytes)

    return have


def test_it_holds_from_the_first_op_and_is_said(free, capsys):
    free(2 * GIB)
    with memfit.session("auto") as session:
        assert session.stats.budget_bytes == 1792 * MIB  # 1.8 GiB, rounded down
        torch.ones(4) + 1
    said = capsys.readouterr().err
    assert said == (
        "memfit: the budget is 1.75 GiB: 2.00 GiB of memory are free, of which at least 256 MiB are left to what is "
        "not in the arena\n"
    )
    with pytest.raises(torch.OutOfMemoryError), memfit.session(" AUTO ", map="never"):
        torch.empty(2 * GIB, dtype=torch.uint8)


def test_training_within_it_gives_the_same_bits():
    session = as_plainly(lambda: train_by_hand(4), "auto")
    assert 0 < session.stats.budget_bytes < host.host_memory_bytes()


def test_ranks_of_a_machine_share_what_is_free_on_the_cpu(free, monkeypatch, capsys):
    free(8 * GIB)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert auto_budget(CPU, TierSpec("disk", "/tmp")).bytes == rounded(2 * GIB - 256 * MIB)
    assert "2.00 GiB of memory are free for each of 4 ranks" in capsys.readouterr().err
    monkeypatch.setenv("RANK", "1")
    auto_budget(CPU, TierSpec("disk", "/tmp"))
    assert capsys.readouterr().err == ""


def test_a_session_that_is_made_and_begins_later_takes_what_is_free_then(free):
    free(4 * GIB)
    session = memfit.session("auto")
    free(1 * GIB)
    with session:
        assert session.stats.budget_bytes == 768 * MIB


def test_a_tier_in_the_same_memory_has_its_part_of_it(free, capsys):
    free(4 * GIB)
    assert auto_budget(CPU, TierSpec("ram", "", 2 * GIB)).bytes == rounded(4 * GIB - 4 * GIB // 10 - 2 * GIB)
    assert "and 2.00 GiB to the tier" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"cannot be 'auto' with tier ram\n.*same memory.*\n.*ram:8GiB"):
        auto_budget(CPU, TierSpec("ram"))


def test_where_hardly_anything_is_free_the_error_says_so(free):
    free(300 * MIB)
    with pytest.raises(BudgetError, match=r"300 MiB of memory\n.*256 MiB of that are left(.|\n)*end other programs"):
        auto_budget(CPU, TierSpec("disk", "/tmp"))


def test_a_disk_tier_in_memory_is_told(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tiers, "is_in_memory", lambda folder: folder == str(tmp_path))
    with memfit.session("64MiB", tier=f"disk:{tmp_path}"):
        pass
    warning = f"memfit: warning: the disk tier's folder '{tmp_path}' is in memory (tmpfs), so what leaves"
    assert capsys.readouterr().err.startswith(warning)
    for budget, tier in ((None, f"disk:{tmp_path}"), ("64MiB", "ram"), ("64MiB", f"disk:{tmp_path.parent}")):
        with memfit.session(budget, tier=tier):
            pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("size", [1, 63, 100 * MIB, 3 * GIB + 1, 77 * GIB])
def test_rounding_costs_a_few_per_cent_and_leaves_few_values(size):
    assert 0.96 * size <= rounded(size) <= size
    assert len({rounded(n) for n in range(1 << 20, 1 << 21, 999)}) <= 32


def test_a_gpu_s_budget_is_what_the_device_has_free(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10 * GIB, 16 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 3 * GIB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 1 * GIB)
    budget = auto_budget(torch.device("cuda", 0), TierSpec("ram")).bytes
    assert budget == rounded(12 * GIB - 12 * GIB // 20)


def test_an_integrated_gpu_s_budget_is_free_to_both_and_leaves_both_their_margins(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=1))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    for of_the_driver, of_the_host in ((60 * GIB, 40 * GIB), (40 * GIB, 60 * GIB)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=of_the_driver: (free, 128 * GIB))
        monkeypatch.setattr(host, "available_bytes", lambda free=of_the_host: free)
        budget = auto_budget(torch.device("cuda", 0), TierSpec("disk", "/tmp")).bytes
        assert budget == rounded(40 * GIB - 40 * GIB // 20 - 40 * GIB // 10)


def test_only_runs_have_it():
    assert is_auto("auto") and not is_auto("60%") and not is_auto(None) and not is_auto(1)
    with pytest.raises(InputError, match="'auto' is for runs alone"):
        parse_budget("auto")


def test_what_is_available_is_the_least_of_machine_and_containers(monkeypatch):
    files = {"/proc/meminfo": f"MemTotal: 99 kB\nMemAvailable: {8 << 20} kB\n", "/proc/self/cgroup": "0::/a/b\n"}
    monkeypatch.setattr(host, "_text", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(host, "_addresses_left", lambda: iter(()))
    assert host.available_bytes() == 8 * GIB
    files["/sys/fs/cgroup/a/memory.max"] = f"{4 * GIB}\n"
    assert host.available_bytes() == 8 * GIB  # how much of it is used nobody says
    files["/sys/fs/cgroup/a/memory.current"] = f"{3 * GIB}\n"
    assert host.available_bytes() == GIB
    files["/sys/fs/cgroup/a/memory.stat"] = f"anon 5\ninactive_file {2 * GIB}\n"
    assert host.available_bytes() == 3 * GIB
    files["/sys/fs/cgroup/a/b/memory.high"] = f"{2 * GIB}\n"
    files["/sys/fs/cgroup/a/b/memory.current"] = f"{GIB}\n"
    assert host.available_bytes() == GIB  # beyond it the kernel slows the container down
    assert host.host_memory_bytes() == min(4 * GIB, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def test_the_marker_of_version_two_beside_groups_of_version_one_is_no_limit(monkeypatch):
    files = {
        "/proc/meminfo": f"MemAvailable: {8 << 20} kB\n",
        "/proc/self/cgroup": "11:memory:/a\n0::/a\n",
        "/sys/fs/cgroup/a/memory.limit_in_bytes": "1\n",
        "/sys/fs/cgroup/a/memory.usage_in_bytes": "1\n",
    }
    monkeypatch.setattr(host, "_text", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(host, "_addresses_left", lambda: iter(()))
    assert host.available_bytes() == 8 * GIB


def test_containers_of_the_first_version_count_likewise(monkeypatch):
    folder = "/sys/fs/cgroup/memory/a"
    files = {
        "/proc/meminfo": f"MemAvailable: {8 << 20} kB\n",
        "/proc/self/cgroup": "11:memory:/a\n",
        f"{folder}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{folder}/memory.stat": f"total_inactive_file {GIB}\n",
    }
    monkeypatch.setattr(host, "_text", lambda path: files.get(str(path), ""))
    monkeypatch.setattr(host, "_addresses_left", lambda: iter([9 * GIB]))
    assert host.available_bytes() == 2 * GIB
    files[f"{folder}/memory.usage_in_bytes"] = f"{6 * GIB}\n"
    assert host.available_bytes() == 0


def test_what_is_said_here_is_about_what_there_is():
    assert 0 < host.available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
