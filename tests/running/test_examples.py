"""The examples, unmodified, at their small sizes: bit-identical at every budget that can be met, refused below."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pytest

from memfit.errors import BudgetError
from memfit.files import load_trace
from memfit.ir import Trace
from memfit.planning.lifetimes import minimum_budget, peak_live
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.verify import Verdict, verify

pytestmark = pytest.mark.timeout(600)

FOLDER = Path(__file__).parents[2] / "examples"
STEPS = 4
# The first steps are needed to find an iteration that repeats and to record it; then come those during which it is
# planned, which are the more the busier the machine is.
PLANNED_STEPS = (40, 120, 360)
# As each script's docstring gives it.
SMALL = {
    "decoder": "--layers 2 --width 64 --batch 8",
    "gan": "--width 16 --batch 64",
    "generate": "--layers 6 --width 256",
    "lstm": "--width 64 --batch 16",
    "resnet": "--width 8 --batch 32",
    "unet": "--width 8 --batch 8",
    "vgg": "--width 8 --batch 64",
}
NEEDS = {"decoder": "transformers"}


@dataclass(frozen=True)
class Example:
    """One script and the trace of its iteration."""

    name: str
    trace: Trace

    @property
    def script(self) -> str:
        return str(FOLDER / f"{self.name}.py")

    @property
    def arguments(self) -> list[str]:
        return arguments(self.name)

    @property
    def minimum_percent(self) -> float:
        return 100 * minimum_budget(self.trace)[0] / peak_live(self.trace, aligned=True)[0]

    @property
    def lowest_percent(self) -> int:
        """The lowest share with a tenth for holes."""
        return min(100, -(-int(110 * self.minimum_percent) // 100))

    def verify(self, percent: int, tier: str, folder: Path, mapping: str = "auto") -> Verdict:
        spec = TierSpec(tier, str(folder) if tier == "disk" else "")
        return verify(self.script, self.arguments, f"{percent}%", spec, map=mapping)


def arguments(name: str) -> list[str]:
    return [*SMALL[name].split(), "--steps", str(STEPS)]


@pytest.fixture(scope="module", params=SMALL)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Example:
    name = request.param
    pytest.importorskip(NEEDS.get(name, "sklearn"))
    path = tmp_path_factory.mktemp(name) / "trace.json.gz"
    command = ["-m", "memfit", "trace", str(FOLDER / f"{name}.py"), "-o", str(path), "--", *arguments(name)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return Example(name, load_trace(path))


def assert_equal(verdict: Verdict) -> None:
    assert verdict.difference is None, str(verdict.difference)
    assert verdict.steps >= STEPS
    kinds = ("loss", "gradient", "weight") if "loss" in verdict.compared else ("output",)
    assert min(verdict.compared[kind] for kind in kinds) >= STEPS
    stats = verdict.limited.stats
    assert 0 < stats["peak_footprint_bytes"] <= stats["budget_bytes"]
    assert stats["bytes_out"] > 0 and stats["bytes_in"] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    "example",
    ["decoder", "generate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "vgg"))],
    indirect=True,
)
def test_at_its_lowest_feasible_budget_on_disk(example, tmp_path):
    assert_equal(example.verify(example.lowest_percent, "disk", tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("percent", [80, 50, 30, "lowest"])
def test_at_every_budget(example, percent, tier, tmp_path):
    if percent == "lowest":
        percent = example.lowest_percent
    if percent >= example.lowest_percent:
        assert_equal(example.verify(percent, tier, tmp_path))
    elif percent < example.minimum_percent:
        _, op = minimum_budget(example.trace)
        with pytest.raises(BudgetError) as caught:
            example.verify(percent, tier, tmp_path, "never")
        assert_equal(example.verify(percent, tier, tmp_path))
        message = str(caught.value)
        assert "smallest feasible budget is " in message and f"(--budget {ceil(example.minimum_percent)}%)" in message
        assert example.trace.ops[op].name in message and f"{example.name}.py:" in message
    else:  # between the two it depends on where the holes are: either is right, a wrong result is not
        try:
            assert_equal(example.verify(percent, tier, tmp_path))
        except BudgetError as error:
            assert "cannot be met" in str(error)


@pytest.mark.slow
def test_with_planned_swaps_over_a_slow_link(example):
    percent = max(70, example.lowest_percent)
    tier = DisturbedTier("ram", link_bytes_per_second=5e8)
    for steps in PLANNED_STEPS:
        words = [*SMALL[example.name].split(), "--steps", str(steps)]
        verdict = verify(example.script, words, f"{percent}%", tier, steps)
        assert_equal(verdict)
        stats = verdict.limited.stats
        if stats["plans"] >= 1:
            break
    assert stats["plans"] >= 1 and stats["swaps"] > 0 and stats["prefetches"] > 0


@pytest.mark.slow
def test_no_two_ops_of_an_iteration_lie_outside_of_the_script_and_its_libraries(example):
    named = [op for op in example.trace.ops if op.source]
    assert len(named) > 0.95 * len(example.trace.ops)
    assert any(op.source.split(":")[0].endswith(f"{example.name}.py") for op in named)


@pytest.mark.slow
def test_the_stats_of_a_run_are_written_for_every_example(example, tmp_path):
    command = ["-m", "memfit", "run", "--budget", f"{example.lowest_percent}%", "--stats", str(tmp_path / "stats.json")]
    done = subprocess.run(
        [sys.executable, *command, example.script, *example.arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "stats.json").read_text())["iterations"] >= STEPS


@pytest.mark.long
def test_compressed_models_train_within_a_budget_to_the_same_numbers():
    """The ways of `compress.py` that need torch and scikit-learn alone; "a step" is not recorded inside a session."""
    ways = "plain,pruned,low rank,shared,binarised,mixed precision,bfloat16,distilled"
    script = [str(FOLDER / "compress.py"), "--steps", "4", "--only", ways]
    memfit = ["-m", "memfit", "run", "--budget", "6MiB", "--tier", "ram", "--no-plan-cache"]
    plain, limited = (
        subprocess.run([sys.executable, *words, *script], capture_output=True, text=True, check=True)
        for words in ([], memfit)
    )
    rows = [line for line in plain.stdout.splitlines() if not line.startswith("loss")]
    assert [row[:16].strip() for row in rows] == ["", *ways.split(",")]
    assert _without_a_step(plain.stdout) == _without_a_step(limited.stdout)


def _without_a_step(printed: str) -> list[str]:
    return [line if line.startswith("loss") else line[:46] + line[56:] for line in printed.splitlines()]
