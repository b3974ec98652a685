"""`memfit run --report`: the iteration and its plan as they were carried out, beside what was measured."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest

from cli.helpers_cli import memfit, run, write
from cli.test_run_plan import ACTIVATIONS

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
PACED = ACTIVATIONS.replace("import torch\n", "import time, torch\n", 1).replace(  # plans are made meanwhile
    "    optimizer.step()\n", "    optimizer.step()\n    time.sleep(0.06)\n"
)


def data_of(path: Path) -> dict:
    packed = re.search(r'id="data">([^<]*)<', path.read_text())
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


@pytest.fixture(scope="module", params=["swap", pytest.param("recompute", marks=pytest.mark.slow)])
def reported(request, tmp_path_factory) -> tuple[Path, str]:
    """A folder with the report on a run, its timeline and its statistics; and what the plans of the run do."""
    folder = tmp_path_factory.mktemp(request.param)
    write(folder, PACED)
    plain = run("script.py", "--steps", "60", cwd=folder)
    words = ("--budget", "75%", "--tier", "ram", "--moves", request.param, "--no-plan-cache")
    files = ("--report", "run.html", "--timeline", "run.json", "--stats", "stats.json")
    result = memfit("run", *words, *files, "script.py", "--steps", "60", cwd=folder)
    assert result.returncode == 0 and result.stdout == plain.stdout, result.stderr
    return folder, request.param


def test_a_runs_report_has_its_plan_with_what_was_measured_beside_it(reported):
    folder, moves = reported
    data, stats = data_of(folder / "run.html"), json.loads((folder / "stats.json").read_text())
    foreseen, measured = data["lanes"]
    assert (foreseen["title"], measured["title"]) == ("foreseen", "measured")
    assert foreseen["op"] == measured["op"] and len(measured["start"]) == len(measured["op"])
    assert sum(foreseen["again"]) == (0 if moves == "swap" else len(foreseen["op"]) - len(data["ops"]["name"]))
    assert measured["start"] == sorted(measured["start"]) and measured["us"] > 0
    fates = data["fates"]["swapped" if moves == "swap" else "dropped"]
    assert fates and all(data["storages"]["size"][int(storage)] for storage in fates)
    assert data["budget"] == stats["budget_bytes"] >= max(data["arena"])
    categories = {data["texts"][number] for number in data["storages"]["category"]}
    assert {"parameter", "optimizer state", "gradient", "activation"} <= categories
    assert (
        data["whatIf"]["budgets"]
        and f"{stats['iterations']}, {stats['planned_iterations']} of them by a plan"
        in (folder / "run.html").read_text()
    )


def test_a_runs_timeline_names_the_ops_that_run_again(reported):
    folder, moves = reported
    events = json.loads((folder / "run.json").read_text())["traceEvents"]
    lane = data_of(folder / "run.html")["lanes"][0]
    ops = [event for event in events if event["ph"] == "X" and "phase" in event["args"] and event["pid"] == 1]
    assert [event["args"]["op"] for event in ops] == lane["op"]
    assert [event["name"].endswith(" (again)") for event in ops] == [bool(again) for again in lane["again"]]
    assert any(lane["again"]) == (moves == "recompute")


@pytest.mark.slow
def test_without_a_plan_the_report_has_the_first_iteration(tmp_path):
    write(tmp_path, ACTIVATIONS)
    result = memfit("run", "--budget", "1GiB", "--report", "run.html", "script.py", "--steps", "3", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    data = data_of(tmp_path / "run.html")
    assert data["lanes"] == [] and data["budget"] == 1 << 30 and data["ops"]["name"]


def test_a_run_with_nothing_to_draw_says_so_and_keeps_the_scripts_end(tmp_path):
    write(tmp_path, "import torch\nprint(torch.ones(3).sum().item())\n")
    result = memfit("run", "--budget", "1GiB", "--report", "run.html", "script.py", cwd=tmp_path)
    assert result.returncode == 0 and result.stdout == "3.0\n"
    assert "there is nothing to draw in" in result.stderr and not (tmp_path / "run.html").exists()


def test_a_folder_that_is_not_there_is_an_error_before_the_script_starts(tmp_path):
    write(tmp_path, "print('started')\n")
    result = memfit("run", "--budget", "1GiB", "--report", "nowhere/run.html", "script.py", cwd=tmp_path)
    assert result.returncode == 1 and result.stdout == "" and "mkdir -p" in result.stderr
