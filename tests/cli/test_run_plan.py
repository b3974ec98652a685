"""`memfit run --plan`: a plan made from a trace is what the script is run by, or the user is told why it is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.helpers_cli import memfit, run, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SCRIPT = """\
import argparse
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=14)
parser.add_argument("--width", type=int, default=128)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(args.width, args.width), nn.GELU())))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    optimizer.zero_grad()
    loss = model(torch.randn(64, args.width)).square().mean()
    loss.backward()
    optimizer.step()
    print("step", step, loss.item())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the script and a plan for it."""
    folder = tmp_path_factory.mktemp("plan")
    write(folder, SCRIPT)
    assert memfit("trace", "script.py", "-o", "trace.json", cwd=folder).returncode == 0
    planned = memfit("plan", "trace.json", "--budget", "75%", "--policy", "swap", "--addresses", "--effort", "20",
                     "-o", "plan.json", cwd=folder)  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    return folder


def budgeted(folder: Path, *words: str, options: tuple[str, ...] = ()):
    """Run by the plan; returns the process and its statistics."""
    command = ("run", "--plan", "plan.json", "--tier", "ram", *options, "--stats", "stats.json", "script.py", *words)
    result = memfit(*command, cwd=folder)
    assert result.returncode == 0, result.stderr
    return result, json.loads((folder / "stats.json").read_text())


def test_a_plan_is_used_changes_no_loss_and_is_shown_beside_what_was_measured(folder):
    plain = run("script.py", cwd=folder)
    result, stats = budgeted(folder, options=("--budget", "78%", "--timeline", "timeline.json"))
    plan = json.loads((folder / "plan.json").read_text())
    assert result.stdout == plain.stdout and "warning" not in result.stderr
    assert stats["given_plan"] == "used" and stats["swaps"] >= len(plan["swaps"]["storage"]) > 0
    assert stats["peak_footprint_bytes"] <= stats["budget_bytes"]
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    names = {event["args"]["name"].split(" ")[0] for event in events if event.get("ph") == "M"}
    assert {"predicted", "measured"} <= names
    processes = {event["pid"] for event in events if event.get("ph") == "X"}
    assert len(processes) == 2  # ops and copies of both, and not their headings alone


def warning(stderr: str) -> str:
    """The one line of warning."""
    (line,) = [line for line in stderr.splitlines() if "warning" in line]
    assert line.startswith("memfit: warning: the given plan is not used: ") and "memfit plan" in line
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "options", "part"),
    [
        (("--width", "64"), (), "is idle after op"),
        pytest.param(("--steps", "3"), (), "the script ended before an iteration had repeated", marks=pytest.mark.slow),
        pytest.param((), ("--budget", "45%"), "with addresses it needs", marks=pytest.mark.slow),
    ],
)
def test_a_plan_that_cannot_be_used_is_named_with_the_reason_and_changes_no_loss(folder, words, options, part):
    plain = run("script.py", *words, cwd=folder)
    result, stats = budgeted(folder, *words, options=options)
    assert result.stdout == plain.stdout
    assert part in warning(result.stderr) and part in stats["given_plan"]
    if options:
        assert stats["swaps"] > 0  # planned by the session itself instead
    else:
        assert stats["budget_bytes"] == json.loads((folder / "plan.json").read_text())["budget_bytes"]


ACTIVATIONS = SCRIPT.replace("randn(64", "randn(1024")  # that most of the memory is for


@pytest.fixture(scope="module")
def recomputing(tmp_path_factory) -> Path:
    """A folder with the script and a plan for it that makes storages again, and swaps none."""
    folder = tmp_path_factory.mktemp("recomputing")
    write(folder, ACTIVATIONS)
    assert memfit("trace", "script.py", "-o", "trace.json", cwd=folder).returncode == 0
    planned = memfit("plan", "trace.json", "--budget", "80%", "--policy", "recompute", "--addresses", "-o", "plan.json",
                     cwd=folder)  # fmt: skip
    assert planned.returncode == 0, planned.stderr
    return folder


@pytest.mark.slow
def test_a_plan_that_makes_storages_again_is_used_and_changes_no_loss(recomputing):
    plain = run("script.py", cwd=recomputing)
    result, stats = budgeted(recomputing, options=("--budget", "85%"))
    plan = json.loads((recomputing / "plan.json").read_text())
    assert result.stdout == plain.stdout and "warning" not in result.stderr
    assert stats["given_plan"] == "used" and not plan["swaps"]["storage"]
    assert stats["recomputations"] >= len(plan["recomputes"]["storage"]) > 0 and stats["swaps"] == 0


@pytest.mark.slow
def test_a_plan_whose_storages_are_not_dropped_there_is_named_with_the_op(recomputing, tmp_path):
    write(tmp_path, ACTIVATIONS)
    plan = json.loads((recomputing / "plan.json").read_text())
    plan["recomputes"]["after"][0] = plan["recomputes"]["before"][0] - 1
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    result, stats = budgeted(tmp_path)
    assert "can be made again before op" in warning(result.stderr) and "dropped after op" in stats["given_plan"]


@pytest.mark.slow
def test_a_plan_for_another_number_of_ops_is_named_so(folder, tmp_path):
    write(tmp_path, SCRIPT.replace("range(6)", "range(5)"))
    (tmp_path / "plan.json").write_text((folder / "plan.json").read_text())
    result, stats = budgeted(tmp_path)
    assert "it is for an iteration of 206 ops, and this one has " in warning(result.stderr)
    assert "206 ops" in stats["given_plan"]


def test_without_a_plan_there_is_nothing_to_say(folder):
    result = memfit("run", "--budget", "60%", "--tier", "ram", "--stats", "none.json", "script.py", cwd=folder)
    assert "warning" not in result.stderr
    assert json.loads((folder / "none.json").read_text())["given_plan"] == ""
