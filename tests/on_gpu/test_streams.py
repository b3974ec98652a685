"""The order of copies and ops on a GPU: whatever is late, nobody reads bytes that are not there yet."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

import pytest
import torch

import memfit
from memfit.errors import MemfitError
from memfit.running.engine.disturbed import DisturbedTier
from on_gpu.helpers_gpu import train
from python_path import environment
from running.plainly import same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SCRIPT = """
import torch, memfit
from benchmarks.common.waiting import wait_for_plans
from on_gpu.helpers_gpu import train
wait_for_plans()
with torch.device("cuda"), memfit.session("50%", device="cuda", moves="swap") as session:
    train(steps=24, layers=4, width=256, batch=2048)
assert session.stats.swaps > 0, session.stats
"""


@pytest.mark.parametrize("longest_us", [50, 500, 5000])
def test_copies_that_begin_late_by_random_times_change_no_bit(longest_us):
    expected = train(steps=30)
    for _ in range(5):
        with memfit.session("50%", DisturbedTier("ram", longest_delay_us=longest_us), device="cuda") as session:
            found = train(steps=30)
        assert same_bits(found, expected)
        assert session.stats.prefetches > 0


def test_a_busy_gpu_beside_it_changes_no_bit():
    expected = train()
    noise = torch.ones(4096, 4096)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(500):
            noise @ noise
    with memfit.session("50%", device="cuda"):
        assert same_bits(train(), expected)
    side.synchronize()


@pytest.mark.parametrize("field", ["fail_write", "fail_read"])
@pytest.mark.parametrize("at", [1, 7, 40])
@pytest.mark.parametrize("kind", ["ram", "disk"])
def test_a_copy_that_fails_once_costs_no_bit_or_is_a_clear_error(kind, at, field):
    expected = train()
    tier = DisturbedTier(kind, tempfile.gettempdir() if kind == "disk" else "", **{field: at})
    try:
        with memfit.session("50%", tier, device="cuda"):
            found = train()
    except MemfitError as error:
        assert "injected fault" in str(error)
    else:
        assert same_bits(found, expected)
    assert same_bits(train(), expected)


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="compute-sanitizer is not on the PATH")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, str(script)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
