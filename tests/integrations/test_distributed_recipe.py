"""The engines of docs/recipes/distributed.md that memfit's tests do not install, where somebody has installed them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.helpers_cli import write
from cli.helpers_ranks import clean, torchrun
from docs.recipe import read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FILES = read((Path(__file__).parents[2] / "docs" / "recipes" / "distributed.md").read_text()).files


def losses(text: str) -> set[str]:
    return set(re.findall(r"rank \d: loss [-+.e\d]+", text))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_trains_to_the_same_losses(tmp_path, stage):
    pytest.importorskip("deepspeed")
    write(tmp_path, FILES["with_deepspeed.py"])
    plain = torchrun("script.py", stage, cwd=tmp_path, DS_ACCELERATOR="cpu")
    words = ("-m", "memfit", "run", "--budget", "70%", "script.py", stage)
    limited = torchrun(*words, cwd=tmp_path, DS_ACCELERATOR="cpu")
    assert limited.returncode == 0, limited.stderr
    assert losses(limited.stdout) == losses(plain.stdout) and len(losses(plain.stdout)) == 2
    assert "trained 12 iterations within" in limited.stderr


def test_ray_s_workers_train_to_the_same_losses(tmp_path):
    pytest.importorskip("ray.train")
    write(tmp_path, FILES["with_ray.py"])
    said = []
    for budget in ({}, {"BUDGET": "70%"}):
        done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180,
                              env=clean(dict(os.environ)) | {"OMP_NUM_THREADS": "1"} | budget)  # fmt: skip
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
    assert losses(said[0]) == losses(said[1]) and len(losses(said[0])) == 2
    assert "moved 0 bytes" in said[0] and re.search(r"moved [1-9]\d+ bytes", said[1])
