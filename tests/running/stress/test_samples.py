"""Torch's own operators and modules give the same bits plainly, and with all that may move moved before every op."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from python_path import environment
from running.stress import verified
from running.stress.compare import STRESSES

pytest.importorskip("expecttest", reason="torch's operator samples need it")

# Every allocation is filled anew, so that what a kernel leaves unwritten differs from run to run and is left out.
UNCACHED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def start(report: Path, **options: int) -> subprocess.Popen[bytes]:
    arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "running.stress.worker", *arguments, "--report", str(report)]
    return subprocess.Popen(command, env=environment(**UNCACHED, MEMFIT_STRESS=""))


def finish(process: subprocess.Popen[bytes], report: Path) -> dict:
    assert process.wait() == 0
    found = json.loads(report.read_text())
    assert not found["faults"], "\n".join(found["faults"][:20])
    return found


@pytest.mark.long
def test_some_samples_of_every_kind_are_bit_identical_under_stress(tmp_path):
    found = finish(start(tmp_path / "report", first=2, every=90, most=4), tmp_path / "report")
    assert found["samples"] > 60


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_samples_are_bit_identical_under_stress(tmp_path, capsys):
    reports = [tmp_path / "first", tmp_path / "second"]
    processes = [start(report, first=first, every=2, most=12) for first, report in enumerate(reports)]
    found = [finish(process, report) for process, report in zip(processes, reports, strict=True)]
    sums = {name: sum(one[name] for one in found) for name, value in found[0].items() if isinstance(value, int)}
    with capsys.disabled():
        print(f"\ncompared under {' and '.join(STRESSES)}: {sums}")
    assert sums["samples"] > 5000
    assert verified.liars(found).isdisjoint(verified.listed())
    assert verified.opaque(found).isdisjoint(verified.listed(verified.COMPOSITES))
    tried = verified.verified(found) <= verified.listed() and verified.transparent(found) <= verified.listed(
        verified.COMPOSITES
    )
    assert tried, "write the lists anew: python -m running.stress.verified"
