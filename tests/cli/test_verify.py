"""`memfit verify` compares two runs, and finds the first op that is not the same."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import replace

import pytest

from cli.helpers_cli import TRAINING, line_of, memfit, write
from memfit.cli import main
from memfit.cli.verify import _same_run
from memfit.planning.partition import Speeds
from memfit.running.scripts.script import Program
from memfit.running.scripts.verify import Steps, failure
from memfit.running.scripts.witness import Request
from pseudo_terminal import on_terminal

pytestmark = pytest.mark.timeout(300)

# Counts its runs in a file: verify's first run is the plain one, the second the one under the budget.
COUNTER = """\
from pathlib import Path

counter = Path("runs")
runs = int(counter.read_text()) + 1 if counter.exists() else 1
counter.write_text(str(runs))
"""

FAST = Speeds(1e18, 1e18, 1.0)
"""On such a machine all that may be is made again."""


class Result:
    """What `memfit verify` did, run in this process; its two runs are processes of their own."""

    def __init__(self, folder, capsys, monkeypatch):
        self._folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch

    def of(self, text, *words):
        write(self._folder, text)
        self._monkeypatch.chdir(self._folder)
        self.returncode = main(["verify", "script.py", *words])
        self.stdout, self.stderr = self._capsys.readouterr()
        return self


@pytest.fixture
def verify(tmp_path, capsys, monkeypatch):
    return Result(tmp_path, capsys, monkeypatch).of


@pytest.mark.long
def test_a_script_that_repeats_itself_is_equal_and_everything_is_counted(verify):
    result = verify(TRAINING, "--budget", "100000", "--json", "--", "--steps", "3")
    assert result.returncode == 0, result.stderr
    verdict = json.loads(result.stdout)
    assert verdict["equal"] is True and verdict["difference"] is None and verdict["steps"] == 3
    assert verdict["compared"] == {"loss": 3, "gradient": 18, "weight": 18, "state": 18}
    assert verdict["plain"]["stats"] is None
    assert 0 < verdict["limited"]["stats"]["peak_footprint_bytes"] <= 100_000
    assert verdict["limited"]["stats"]["bytes_out"] > 0


COMPILED = """\
import torch
from torch import nn

torch.manual_seed(1)
model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.2))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = torch.compile(model)
for _ in range(4):
    optimizer.zero_grad()
    run(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.slow
def test_both_runs_of_a_compiled_script_keep_what_the_budget_run_does(verify, monkeypatch):
    made = []
    monkeypatch.setattr("memfit.running.scripts.verify.speeds_to", lambda tier, device: made.append(tier) or FAST)
    result = verify(COMPILED, "--budget", "80%", "--tier", "ram", "--partition", "recompute", "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["equal"] is True
    assert len(made) == 1


STATE_IN_WRAPPERS = """\
import torch

class Scaled(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    FLATTEN

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))

class Momentum(torch.optim.Optimizer):
    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            moment = state["m"].codes.float() * state["m"].scale if state else torch.zeros_like(parameter)
            moment = moment * 0.9 + parameter.grad
            scale = moment.abs().max() / 127 + 1e-12
            state["m"] = Scaled((moment / scale).round().to(torch.int8), scale)
            parameter.sub_(moment, alpha=0.1)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
optimizer = Momentum(model.parameters(), {})
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.parametrize("says", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_state_in_a_wrapper_subclass_is_compared_by_what_it_holds_or_said_to_be_skipped(verify, says):
    flatten = "def __tensor_flatten__(self): return ['codes', 'scale'], None"
    result = verify(STATE_IN_WRAPPERS.replace("FLATTEN", flatten if says else ""), "--budget", "60%")
    assert result.returncode == 0, result.stderr
    assert ("24 x state" in result.stdout.splitlines()[0]) is says
    assert ("not compared: 12 x state, Scaled: " in result.stdout) is not says


@pytest.mark.long
@pytest.mark.parametrize("command", ["verify", *(pytest.param(c, marks=pytest.mark.slow) for c in ("run", "whatif"))])
def test_a_failure_of_memfits_own_code_is_not_the_scripts(tmp_path, command):
    breaks = (
        "from memfit.running.session.iterations import Iterations\n\n\ndef broken(*_):\n    raise KeyError('broken')\n"
    )
    write(tmp_path, breaks + "\n\nIterations._stepped = broken\n" + TRAINING)
    options = ("--budget", "60%") if command != "whatif" else ()
    done = memfit(command, *options, "script.py", cwd=tmp_path)
    assert done.returncode == 7 and "memfit: error: memfit failed: KeyError: 'broken'" in done.stderr
    assert "iterations.py" in done.stderr.split("memfit: error: ")[0] and "please report it" in done.stderr
    assert "the script failed" not in done.stderr and "until it works" not in done.stderr


@pytest.mark.slow
def test_the_verdict_for_a_person_and_the_steps_it_stops_after(verify):
    result = verify(TRAINING, "--budget", "60%", "--steps", "3", "--", "--steps", "100000")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("equal: 3 x loss, 18 x gradient, 18 x weight, 18 x state, over 3 optimizer steps\n")
    assert result.stderr == "next: memfit run --budget 60% script.py --steps 100000\n"


@pytest.mark.long
def test_a_script_that_does_not_repeat_itself_is_found_out_with_the_op(verify):
    text = COUNTER + TRAINING.replace(
        "    x = torch.randn(32, 64)", "    x = torch.randn(32, 64).mul(runs if step == 1 else 1)"
    )
    result = verify(text, "--budget", "100000")
    assert result.returncode == 4
    assert result.stdout.startswith("NOT EQUAL")
    assert "step 2: loss 0 differs" in result.stderr
    assert "aten.mul" in result.stderr and f"script.py:{line_of(text, '.mul(')}" in result.stderr
    assert "two plain runs" in result.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_difference_in_the_backward_pass_is_found_out_with_the_op(verify):
    """Reading a loss for its hash must not look like an op of one of the runs."""
    backward = "    loss.register_hook(lambda gradient: gradient.mul(runs))\n    loss.backward()"
    text = COUNTER + TRAINING.replace("    loss.backward()", backward)
    result = verify(text, "--budget", "100000", "--json")
    assert result.returncode == 4
    difference = json.loads(result.stdout)["difference"]
    assert difference["step"] == 1 and difference["what"].startswith("gradient")
    assert "aten.mul" in difference["op"] and f"script.py:{line_of(text, '.mul(')}" in difference["op"]


@pytest.mark.slow
def test_a_difference_that_does_not_come_again_says_so(verify):
    text = COUNTER + TRAINING.replace("torch.manual_seed(0)", "torch.manual_seed(runs == 2)")
    result = verify(text, "--budget", "100000", "--json")
    assert result.returncode == 4
    difference = json.loads(result.stdout)["difference"]
    assert difference["step"] == 1 and difference["what"].startswith("loss") and difference["op"] == ""


INFERENCE = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
with torch.inference_mode():
    for _ in range(5):
        x = torch.randn(8, 64)
        hidden = model[0](x) if DISTURBED else x
        model(hidden)
"""


@pytest.mark.long
def test_a_script_that_only_infers_is_compared_by_what_its_passes_return(verify):
    text = INFERENCE.replace("DISTURBED", "False")
    result = verify(text, "--budget", "30000", "--steps", "4", "--json")
    assert result.returncode == 0, result.stderr
    verdict = json.loads(result.stdout)
    assert verdict["compared"] == {"output": 4} and verdict["steps"] == 4
    assert verdict["limited"]["stats"]["bytes_in"] > 0


@pytest.mark.slow
def test_the_first_pass_that_differs_is_named_with_its_op(verify):
    text = COUNTER + INFERENCE.replace("DISTURBED", "runs % 2 == 0 and _ == 2").replace(
        "hidden = ", "hidden = 1 * x if 0 else "
    )
    result = verify(text, "--budget", "30000")
    assert result.returncode == 4
    assert "step 3" in result.stderr and "output 0 of" in result.stderr


@pytest.mark.slow
def test_a_run_with_more_steps_than_the_other_is_a_difference(verify):
    text = COUNTER + TRAINING.replace("steps = parser.parse_args().steps", "steps = 2 + runs % 2")
    result = verify(text, "--budget", "100000")
    assert result.returncode == 4 and "step 3" in result.stderr and "one run only" in result.stderr


@pytest.mark.long
@pytest.mark.parametrize("budget", [pytest.param("10KiB", marks=pytest.mark.slow), "5%"])
def test_a_budget_that_cannot_be_met_is_exit_code_3(verify, budget):
    result = verify(TRAINING, "--budget", budget)
    assert result.returncode == 3
    assert result.stderr.startswith("memfit: error: ") and "cannot be met" in result.stderr
    assert "script.py:" in result.stderr and "memfit: error: memfit" not in result.stderr.split("\n", 1)[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "part"),
    [("raise ValueError('own')", "own"), ("pass", "computes nothing")],
)
def test_a_script_that_fails_by_itself_is_exit_code_1(verify, text, part):
    result = verify(text, "--budget", "1MiB")
    assert result.returncode == 1 and part in result.stderr and "budget" not in result.stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["script.py"], 2),
        (["script.py", "--budget", "1MiB", "--steps", "-1"], 2),
        (["script.py", "--budget", "1MiB", "--steps", "many"], 2),
        (["script.py", "--budget", "much"], 1),
        (["missing.py", "--budget", "1MiB"], 1),
        (["script.py", "--budget", "1MiB", "--tier", "floppy"], 1),
    ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path, words, code, capsys, monkeypatch):
    write(tmp_path, "open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *words]) == code
    assert capsys.readouterr().err.startswith("memfit: error: ")
    assert not (tmp_path / "ran").exists()


def test_the_next_command_has_the_scripts_arguments_and_all_options_that_are_not_the_defaults():
    args = argparse.Namespace(budget="40%", tier="ram", device="cpu", map="auto", split="never", nproc_per_node=None,
                              partition="recompute")  # fmt: skip
    command = _same_run(args, Program("pkg.train", is_module=True), ["--name", "a b"])
    options = "--budget 40% --tier ram --device cpu --split never --partition recompute"
    assert command == f"memfit run {options} -m pkg.train --name 'a b'"


def test_under_torchrun_it_refuses_to_wait_for_ever(tmp_path, monkeypatch, capsys):
    path = write(tmp_path, "open('ran', 'w')")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert main(["verify", str(path), "--budget", "1MiB"]) == 2
    err = capsys.readouterr().err
    assert "torchrun" in err and "memfit verify --nproc-per-node 2" in err and not (tmp_path / "ran").exists()


def test_a_script_that_fails_under_the_budget_alone_is_said_to_have_run_plainly():
    request = Request("s.py", [], "log")
    done = subprocess.CompletedProcess([], 1, stderr="Traceback: own")
    assert "plain run succeeded" not in str(failure(request, done))
    assert "plain run succeeded" in str(failure(replace(request, budget="40%"), done))


@pytest.mark.slow
def test_a_share_that_never_took_effect_verifies_nothing(verify):
    result = verify(TRAINING, "--budget", "60%", "--", "--steps", "1")
    assert result.returncode == 5 and "nothing was verified" in result.stderr and "one step" in result.stderr


def test_the_line_has_the_steps_of_both_runs_and_what_is_left_once_it_is_known(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("memfit.running.scripts.verify.time.monotonic", lambda: now[0])
    plain = Request("script.py", [], str(tmp_path / "plain"), steps=10)
    limited = replace(plain, log=str(tmp_path / "limited"), budget="60%")
    asked, all_steps = Steps((plain, limited)), Steps((replace(plain, steps=0), replace(limited, steps=0)))
    assert asked.line() == "verifying | plain run, step 0 of 10"
    (tmp_path / "plain.steps").write_text("." * 4)
    now[0] = 8.0
    assert asked.line() == "verifying | plain run, step 4 of 10 | 0:08, about 0:32 left"
    assert all_steps.line() == "verifying | plain run, step 4"
    (tmp_path / "plain.steps").write_text("." * 10)
    (tmp_path / "limited").touch()
    (tmp_path / "limited.steps").write_text("." * 6)
    now[0] = 32.0
    assert asked.line() == all_steps.line() == "verifying | budget run, step 6 of 10 | 0:32, about 0:08 left"


@pytest.mark.slow
def test_on_a_terminal_the_steps_are_shown_and_gone_in_the_end(tmp_path):
    write(tmp_path, "import time\n" + TRAINING.replace("    print(", "    time.sleep(0.5); print("))
    command = ("-m", "memfit", "verify", "script.py", "--budget", "60%", "--steps", "4")
    code, screen = on_terminal(command, tmp_path, columns=100)
    assert code == 0 and not any("verifying" in row for row in screen.text)
    for run in ("plain", "budget"):
        assert any(row.startswith(f"verifying | {run} run, step 2 of 4 | 0:") for row in screen.shown)
