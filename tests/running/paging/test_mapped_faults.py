"""What goes wrong under mapped storages is an error, or slower: never a hang or a wrong bit."""

from __future__ import annotations

import resource
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import memfit
from memfit.errors import TierError
from memfit.running.engine.disturbed import DisturbedTier
from running.children import child_says
from running.paging.workloads import LARGE, STREAMS

pytestmark = [pytest.mark.usefixtures("on_its_own"), pytest.mark.timeout(120)]
ADD = STREAMS[0]


def test_a_thread_that_dies_is_succeeded_by_another(paged, mechanism):
    if mechanism == "signals":
        pytest.skip("it has no thread")
    expected = ADD.run(*ADD.make())[0].numpy().tobytes()
    with paged(LARGE // 2, dies_after=7) as session:
        results = ADD.run(*ADD.make())
        assert session.read_bytes(results[0].untyped_storage()) == expected
        assert session.stats.faults > 7


@pytest.mark.parametrize("tier", [dict(fail_read=3), dict(fail_read=3, repeat=True)], ids=["once", "always"])
def test_bytes_that_cannot_be_read_are_an_error_and_what_was_made_of_them_is_lost(paged, tier, tmp_path):
    with paged(LARGE // 2, DisturbedTier("disk", str(tmp_path), **tier)):
        with pytest.raises(TierError, match="injected fault"):
            a, b = ADD.make()
            result = a + b
            result.sum()
        assert torch.ones(3).sum() == 3  # other work goes on


def test_a_full_disk_in_the_midst_of_an_op_is_an_error_and_loses_no_input(paged, tmp_path):
    plain = torch.arange(LARGE // 4, dtype=torch.float32).numpy().tobytes()
    with paged(LARGE // 2, DisturbedTier("disk", str(tmp_path), fail_write=3000, repeat=True)) as session:
        a = torch.arange(LARGE // 4, dtype=torch.float32)
        with pytest.raises(TierError, match="injected fault: write failed"):
            for _ in range(9):
                (a + 1).sum()
        assert session.read_bytes(a.untyped_storage()) == plain


@pytest.mark.long
def test_changes_in_place_outlive_writes_that_fail(paged, tmp_path):
    expected = torch.full((LARGE // 4,), 3.0)
    tensor = torch.full((LARGE // 4,), 2.0)
    with paged(LARGE // 2, DisturbedTier("disk", str(tmp_path), fail_write=1000, repeat=True)):
        with pytest.raises(TierError, match="injected fault"):
            for _ in range(99):
                tensor.add_(1).sub_(1)
        tensor.fill_(3)
    assert torch.equal(tensor, expected)


def test_a_forked_child_reads_what_is_mapped_in_its_parent(paged):
    with paged(LARGE // 2):
        tensor = ADD.make()[0]
        expected = tensor[::1001].sum().item()
        # (The parent goes on elsewhere than where the child reads.)
        assert child_says(lambda: tensor[::1001].sum().item() == expected, meanwhile=tensor.zero_)
        assert tensor.abs().sum() == 0


@contextmanager
def no_more_addresses():
    """Refuse every further mapping of more than a few pages."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, ((int(status["VmSize"].split()[0]) << 10) + LARGE // 8, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_mapping_that_fails_while_a_child_lives_loses_no_bytes(paged, capfd):
    with paged(LARGE // 2) as session:
        tensor = ADD.make()[0]
        expected = session.read_bytes(tensor.untyped_storage())
        sample = tensor[::1001].sum().item()

        def fail() -> None:
            with no_more_addresses(), pytest.raises(RuntimeError, match="cannot be met"):
                tensor.mul_(2)

        assert child_says(lambda: tensor[::1001].sum().item() == sample, meanwhile=fail)
        assert "cannot be reserved" in capfd.readouterr().err
        assert session.read_bytes(tensor.untyped_storage()) == expected
        assert tensor.mul_(2)[::1001].sum().item() == 2 * sample


def test_bytes_stay_where_they_are_read_from_when_the_child_that_could_read_them_ends(paged):
    rows = torch.arange(0, 1024, 8)
    with paged(LARGE // 8) as session:
        table = torch.arange(LARGE // 4, dtype=torch.float32).view(1024, -1)
        memfit.map(table)
        before = torch.index_select(table, 0, rows).sum().item()
        # (What the parent writes from now on lies elsewhere than what it reads.)
        assert child_says(lambda: table[8, 0] > 0, meanwhile=lambda: torch.index_select(table, 0, rows[:2]))
        for _ in range(3):  # others leave for the tier, and may do so where nothing is any more
            others = [torch.full((LARGE // 64,), 7.0) for _ in range(12)]
            others[0].add_(others[-1])
        assert torch.index_select(table, 0, rows).sum().item() == before
        assert session.stats.mapped_storages > 0


def test_a_child_of_a_parent_with_a_ram_tier_reads_what_was_there_when_it_was_forked():
    with memfit.session(LARGE // 2, "ram", plan=False) as session:
        tensor = torch.arange(LARGE // 4, dtype=torch.float32)
        sample = tensor[::1001].sum().item()
        assert child_says(lambda: tensor[::1001].sum().item() == sample, meanwhile=lambda: tensor.mul_(2))
        assert tensor[::1001].sum().item() == 2 * sample and session.stats.mapped_ops > 0


CRASH = """
    import ctypes, faulthandler, sys, torch, memfit
    from memfit.running import engine
    {before}
    with memfit.session({budget}, map="auto", plan=False) as s:
        engine.load().set_mapping("auto", "signals")
        a = torch.arange({count}, dtype=torch.float32)
        assert s.stats.faults > 0
        {within}
        print("still here", flush=True)
        ctypes.string_at(8)
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "within", "never"])
def test_a_crash_of_the_program_is_a_crash_with_its_own_message(when):
    enable = "faulthandler.enable()"
    script = CRASH.format(budget=LARGE // 2, count=LARGE // 4, before=enable if when == "before" else "",
                          within=enable + "; (a + 1)" if when == "within" else "")  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == -11 and "still here" in ended.stdout
    assert ended.stderr.count("Fatal Python error: Segmentation fault") == (when != "never")


SMALL_STACK = """
    import ctypes, mmap, sys
    import torch, memfit
    from memfit.running import engine
    from memfit.running.engine.tiers import TierSpec

    class Stack(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("bytes", ctypes.c_size_t)]

    libc = ctypes.CDLL(None, use_errno=True)
    libc.getauxval.restype = ctypes.c_ulong
    page, frame = mmap.PAGESIZE, libc.getauxval(51)  # AT_MINSIGSTKSZ: what the kernel itself writes there
    size = (frame // page + 1) * page
    room = mmap.mmap(-1, size + page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert libc.mprotect(ctypes.c_void_p(base), page, 0) == 0  # who needs more dies, and overwrites nobody
    assert libc.sigaltstack(ctypes.byref(Stack(base + page, 0, size)), None) == 0
    torch.set_num_threads(1)
    expected = torch.arange(float(1 << 20)).add_(1).numpy().tobytes()
    with memfit.session(3 << 20, TierSpec("disk", sys.argv[1]), plan=False, split="never") as session:
        engine.load().set_mapping("auto", "signals", 0)
        a = torch.arange(float(1 << 20)).add_(1)
        assert session.stats.faults > 0
        assert session.read_bytes(a.untyped_storage()) == expected
    print("equal")
"""


@pytest.mark.long
def test_a_small_alternate_stack_is_large_enough_to_be_told_of_faults(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(SMALL_STACK), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (result.returncode, result.stdout) == (0, "equal\n"), result.stderr
