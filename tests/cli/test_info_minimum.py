"""The smallest budget that `memfit info` prints, and 5 % more, trains the script that it was printed for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.helpers_cli import TRAINING, memfit, run, write

HEAD = """\
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(64, 64))
optimizer = torch.optim.SGD([w], 0.1)
"""
LOOP = """\
for step in range(6):
    loss = (Propagate.apply(w) @ torch.randn(64, 64)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("loss", loss.item())
"""
ONE_WAVE = f"""\
{HEAD}
class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.wave = torch.zeros(8, 512, 256)
        ctx.wave.data_ptr()  # a C library fills it; it lives until the next step has made its own
        return w * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.wave[0, 0, 0]
{LOOP}"""
TWO_WAVES = f"""\
{HEAD}
class Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.waves = [torch.zeros(8, 512, 256), torch.ones(2, 512, 200)]
        for wave in ctx.waves:
            wave.data_ptr()
        return w * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2 + ctx.waves[0][0, 0, 0] * ctx.waves[1][0, 0, 0]
{LOOP}"""
SHARED_WITH_NUMPY = f"""\
{HEAD}
kept = []
for step in range(6):
    hidden = torch.randn(2048, 64) @ w
    kept.append((hidden.detach().numpy(), torch.ones(300).numpy()))
    del kept[:-2]
    loss = hidden.square().mean() + sum(float(large[0, 0]) + float(small[0]) for large, small in kept)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("loss", loss.item())
"""


def minimum_of(script: Path) -> int:
    """Return the smallest budget that `memfit info` prints of the script's trace."""
    traced = memfit("trace", script, "-o", "trace.json.gz", cwd=script.parent)
    assert traced.returncode == 0, traced.stderr
    minimum: int = json.loads(memfit("info", "--json", "trace.json.gz", cwd=script.parent).stdout)["minimum"][
        "budget_bytes"
    ]
    return minimum


@pytest.mark.long
@pytest.mark.parametrize(
    "text", [ONE_WAVE, TWO_WAVES, SHARED_WITH_NUMPY, TRAINING], ids=["one wave", "two waves", "numpy", "nothing pinned"]
)
def test_the_budget_that_info_prints_and_a_twentieth_trains_the_script(tmp_path: Path, text: str) -> None:
    script = write(tmp_path, text)
    limited = memfit("run", "--budget", str(minimum_of(script) * 105 // 100), "--no-grow", script, cwd=tmp_path)
    assert limited.returncode == 0, limited.stderr
    assert limited.stdout == run(str(script), cwd=tmp_path).stdout
