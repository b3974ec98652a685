"""Run scripts plainly and by the command line, and small scripts to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TRAINING = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
steps = parser.parse_args().steps

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(steps):
    optimizer.zero_grad()
    x = torch.randn(32, 64)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
"""
"""Six parameters, two of them 64 x 64: no op needs more than 50 KB."""


def write(folder: Path, text: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def line_of(text: str, part: str) -> int:
    """The number of the first line that has `part`."""
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


def run(
    *command: str, cwd: Path, stdin: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | (environment or {}),
    )


def memfit(*arguments: object, cwd: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run("-m", "memfit", *map(str, arguments), cwd=cwd, stdin=stdin)
