"""The line of a session that runs: its words, where it goes, and that no run depends on it."""

from __future__ import annotations

import io
import sys
import time
from dataclasses import fields

import pytest
import torch
from torch import nn

import memfit
from cli.helpers_cli import run, write
from memfit.running.session import watch as watching
from memfit.running.session.stats import Stats
from memfit.running.session.status import IN_FORCE, Status
from memfit.running.session.watch import Watch
from running.plainly import descend

pytestmark = pytest.mark.timeout(120)

NOTHING = dict.fromkeys((field.name for field in fields(Stats)), 0)


def train(steps: int) -> None:
    """Train a small network."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert len(list(descend(optimizer, lambda: model(torch.randn(64, 64)).square().mean(), steps))) == steps


def status(seconds: float = 0.0, plan: str = "no plan yet", planned: int = 0, **figures: int) -> Status:
    return Status(seconds, Stats(**NOTHING | figures), plan, planned)


def test_the_line_has_what_is_in_use_of_the_limit_and_rates_and_waits_since_the_status_before():
    before = status(10.0, bytes_out=4 << 30, bytes_in=1 << 30, stall_ns=3 * 10**9, copy_ns=10**9, iterations=100)
    now = status(12.0, IN_FORCE, 97, bytes_out=(4 << 30) + 1_800_000_000, bytes_in=(1 << 30) + 400_000_000,
                 stall_ns=3_050_000_000, copy_ns=1_012_000_000, iterations=128, resident_bytes=int(11.8 * (1 << 30)),
                 budget_bytes=12 << 30)  # fmt: skip
    line = now.line(before)
    assert line == "it 128 | arena 11.8/12.0 GiB | out 0.9 in 0.2 GB/s | waits 3.1 % | 97 by plan"
    assert len(line) < 80


def test_the_line_says_when_there_is_no_limit_and_why_there_is_no_plan():
    now = status(1.0, "no plan: hardly two of them are alike", 3, bytes_out=2_000_000, resident_bytes=5 << 20)
    assert now.line(status()) == (
        "it 0 | arena 5.00 MiB, no limit | out 2 in 0 MB/s | waits 0.0 % | no plan: hardly two of them are alike"
    )
    small = status(1.0, IN_FORCE, resident_bytes=900 << 10, budget_bytes=2 << 20, copy_ns=9 * 10**9)
    assert small.line(status()).endswith("arena 900 KiB/2.00 MiB | out 0 in 0 MB/s | waits 100.0 % | plan in force")


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(watching, "_EVERY_PLAIN", 0.02)


def lines_in(stream: io.StringIO, count: int) -> list[str]:
    """Wait for so many lines."""
    until = time.monotonic() + 30
    while stream.getvalue().count("\n") < count and time.monotonic() < until:
        time.sleep(0.01)
    return stream.getvalue().splitlines()


def test_where_there_is_no_terminal_whole_lines_come_until_the_block_ends(often, monkeypatch):
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    with Watch(lambda: status(time.monotonic())):
        lines = lines_in(out, 3)
    assert len(lines) >= 3 and set(lines) == {f"memfit: {status(1.0).line(status())}"}
    told = out.getvalue()
    time.sleep(0.1)
    assert out.getvalue() == told


def test_streams_that_are_closed_or_gone_and_figures_that_fail_end_no_line_for_good(often, monkeypatch):
    asked = []

    def now() -> Status:
        asked.append(time.monotonic())
        if len(asked) == 3:
            raise RuntimeError("a dictionary changed its size")
        return status(time.monotonic())

    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    with Watch(now):
        while len(asked) < 5:
            time.sleep(0.01)
        monkeypatch.setattr(sys, "stderr", None)
        while len(asked) < 7:
            time.sleep(0.01)
        monkeypatch.setattr(sys, "stderr", out := io.StringIO())
        assert lines_in(out, 1)[0].startswith("memfit: it 0 | ")


def test_a_session_tells_its_figures_while_it_runs_and_nothing_after(often, monkeypatch):
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    with memfit.session("4MiB", tier="ram") as session, session.watch() as watch:
        train(steps=3)
        lines = lines_in(out, out.getvalue().count("\n") + 2)
    assert lines[-1].startswith("memfit: it 3 | arena ") and "/4.00 MiB | " in lines[-1]
    assert watch._status() is None


LEFT_OPEN = """
import atexit, memfit, sys, threading, torch, os
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
from memfit.running.session import watch
watch._EVERY_PLAIN = 0.01
session = memfit.session("9MiB", tier="ram").__enter__()
session.watch().__enter__()
x = torch.ones(1000)
for _ in range(4):
    child = os.fork()
    if child == 0:
        import time
        time.sleep(0.05)
        os.write(2, b"child\\n")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print("end")
"""


@pytest.mark.long
def test_a_watch_that_is_left_open_keeps_no_process_alive_and_forked_children_tell_nothing(tmp_path):
    write(tmp_path, LEFT_OPEN)
    done = run("script.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "end\n['MainThread']\n"), done.stderr
    lines = done.stderr.splitlines()
    assert lines.count("child") == 4 and len(lines) > 4
    assert all(line.startswith("memfit: it 0 | ") for line in lines if line != "child")


def test_a_thread_that_cannot_be_started_leaves_the_run_without_a_line(monkeypatch):
    monkeypatch.setattr(watching.threading.Thread, "start", lambda self: (_ for _ in ()).throw(RuntimeError("none")))
    with Watch(lambda: status()) as watch:
        assert not watch._stop.is_set()
