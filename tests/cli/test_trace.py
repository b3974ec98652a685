"""`memfit trace` and what reads its files."""

from __future__ import annotations

import json

import pytest

from cli.helpers_cli import TRAINING, line_of, memfit, write
from memfit.cli import main
from memfit.files import load_trace
from memfit.planning.lifetimes import comfortable_budget, peak_live

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_a_trace_is_written_that_info_reads(tmp_path, capsys):
    write(tmp_path, TRAINING)
    result = memfit("trace", "script.py", "-o", "trace.json.gz", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "next: memfit info trace.json.gz\n"
    trace = load_trace(tmp_path / "trace.json.gz")
    assert f"{len(trace.ops)} ops on {len(trace.storages)} storages written to trace.json.gz" in result.stdout
    assert trace.script == "script.py"
    assert main(["info", str(tmp_path / "trace.json.gz")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"({peak_live(trace)[0]:,} bytes) live in op" in out
    assert "Minimum feasible budget" in out and "parameter" in out and "gradient" in out
    assert main(["info", "--json", str(tmp_path / "trace.json.gz")]) == 0
    info = json.loads(capsys.readouterr().out)
    assert info["peak_bytes"] == peak_live(trace)[0]
    assert info["op_count"] == len(trace.ops) and info["script"] == "script.py"
    sources = {op.source for op in trace.ops}
    assert f"script.py:{line_of(TRAINING, 'loss.backward()')}" in sources
    assert f"script.py:{line_of(TRAINING, 'optimizer.step()')}" in sources


@pytest.mark.long
def test_the_script_gets_its_arguments_and_ends_with_its_second_step(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("trace", "script.py", "-o", "t.json", "--json", "--", "--steps", "50", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    *printed, about = result.stdout.splitlines()
    assert [line.split()[1] for line in printed] == ["0"]  # the second step's print comes after the step
    assert json.loads(about)["file"] == "t.json"
    assert json.loads(about)["signature"] == load_trace(tmp_path / "t.json").signature


@pytest.mark.long
def test_a_handler_in_the_script_does_not_keep_it_from_ending(tmp_path):
    guarded = TRAINING.replace(
        "    optimizer.step()", "    try:\n        optimizer.step()\n    except Exception:\n        pass"
    )
    write(tmp_path, guarded)
    result = memfit("trace", "script.py", "-o", "t.json", "--", "--steps", "50", cwd=tmp_path)
    assert result.returncode == 0 and "step 1 " not in result.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("print('nothing')", "ended before a whole iteration had been seen"),
        ("raise SystemExit(9)", "ended with exit code 9"),
        pytest.param("raise ValueError('own')", "ended with exit code 1", marks=pytest.mark.slow),
    ],
)
def test_a_script_without_an_iteration_is_an_error_and_no_file(tmp_path, text, part):
    write(tmp_path, text)
    result = memfit("trace", "script.py", "-o", "t.json", cwd=tmp_path)
    assert result.returncode == 1
    assert "memfit: error: " in result.stderr and part in result.stderr
    assert not (tmp_path / "t.json").exists()


@pytest.mark.slow
def test_one_step_is_too_short(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("trace", "script.py", "-o", "t.json", "--", "--steps", "1", cwd=tmp_path)
    assert result.returncode == 1 and "let it run two steps or more" in result.stderr


@pytest.mark.long
def test_a_folder_that_is_not_there_is_named(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("trace", "script.py", "-o", "nowhere/t.json", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("memfit: error: ") and "nowhere" in result.stderr
    assert result.stdout == ""  # found out before the script was run


@pytest.mark.parametrize("words", [["trace"], ["trace", "script.py"], ["trace", "-o", "t.json"]])
def test_what_is_left_out_is_a_usage_error(words, capsys):
    assert main(words) == 2
    assert "--help" in capsys.readouterr().err


CONVOLUTIONS = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(32, 8, 32, 32)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.slow
def test_the_smallest_budget_of_what_was_tried_in_slices_holds_from_the_first_op_on(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path / "kept"))  # the answers are, too
    write(tmp_path, CONVOLUTIONS)
    least = {}
    for split in ("never", "try"):
        result = memfit("trace", "--split", split, "script.py", "-o", f"{split}.json", cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        trace = load_trace(tmp_path / f"{split}.json")
        assert trace.before is not None
        least[split] = max(comfortable_budget(trace)[0], trace.before.total_bytes)
    assert least["try"] < 0.8 * least["never"]
    words = ("--map", "never", "--tier", "ram", "script.py")
    for split, budget, code in (("auto", 1.01 * least["try"], 0), ("never", 0.99 * least["never"], 3)):
        result = memfit("verify", "--budget", int(budget), "--split", split, *words, cwd=tmp_path)
        assert result.returncode == code, result.stdout + result.stderr
