"""`memfit run`: the statistics, the mistakes it names, budgets that cannot be met, and what it tells."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys

import pytest

from cli.helpers_cli import TRAINING, line_of, memfit, run, write
from memfit.cli import _parser, _split, main
from memfit.cli.program import program_of
from memfit.cli.run import _check_options
from memfit.running.scripts.script import Program
from memfit.units import format_bytes, format_us
from pseudo_terminal import on_terminal

STATS = [
    "budget_bytes",
    "live_bytes",
    "resident_bytes",
    "footprint_bytes",
    "free_bytes",
    "largest_free_bytes",
    "peak_live_bytes",
    "peak_resident_bytes",
    "peak_footprint_bytes",
    "tier_used_bytes",
    "tier_footprint_bytes",
    "adopted_bytes",
    "stray_bytes",
    "ops",
    "allocations",
    "evictions",
    "drops",
    "bytes_out",
    "bytes_in",
    "relocations",
    "bytes_relocated",
    "consolidations",
    "punches",
    "iterations",
    "fragmentation",
    "exit_code",
    "signatures",
]

pytestmark = pytest.mark.timeout(300)


@pytest.mark.long
def test_training_prints_the_same_and_the_statistics_are_written(tmp_path):
    write(tmp_path, TRAINING)
    plain = run("script.py", "--steps", "5", cwd=tmp_path)
    command = ("run", "--budget", "60%", "--stats", "stats.json", "--json", "script.py", "--steps", "5")
    budgeted = memfit(*command, cwd=tmp_path)
    assert (budgeted.returncode, budgeted.stdout) == (0, plain.stdout)
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats == json.loads(budgeted.stderr.splitlines()[-1])
    assert set(STATS) <= set(stats)
    assert 0 < stats["peak_footprint_bytes"] <= stats["budget_bytes"]
    assert stats["bytes_out"] > 0 and stats["exit_code"] == 0
    assert stats["iterations"] == 5 == sum(stats["signatures"].values())


@pytest.mark.slow
def test_the_last_line_says_what_was_done(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--budget", "100000", "script.py", cwd=tmp_path)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("memfit: budget 97.7 KiB, 85 %, arena peak 9") and "over 4 iterations" in last


@pytest.mark.slow
def test_the_statistics_of_a_script_that_fails_are_written_too(tmp_path):
    write(tmp_path, TRAINING + "raise SystemExit(5)\n")
    assert memfit("run", "--budget", "100000", "--stats", "stats.json", "script.py", cwd=tmp_path).returncode == 5
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["exit_code"] == 5 and stats["iterations"] == 4


# --- errors: none of these gets as far as the script


@pytest.mark.parametrize("budget", ["abc", "-1GiB", "0%", "150%", "0", "5 parsecs", "", "%", "nan%"])
def test_a_malformed_budget_is_named_with_a_remedy(tmp_path, budget, capsys):
    path = write(tmp_path, "open('ran', 'w')")
    assert main(["run", f"--budget={budget}", str(path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("memfit: error: ") and repr(budget) in err and "\n  try: " in err
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_budget_of_60_is_60_bytes_and_cannot_be_met(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--budget", "60", "script.py", cwd=tmp_path)
    assert result.returncode == 3
    assert "budget of 60 B cannot be met" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["missing.py"], 1, "there is no script 'missing.py'"),
        (["."], 1, "there is no script '.'"),
        (["--tier", "floppy", "SCRIPT"], 1, "'floppy' is not a tier"),
        (["--tier", "disk:/nowhere/at/all", "SCRIPT"], 1, "'/nowhere/at/all' does not exist"),
        (["--tier", "ram:few", "SCRIPT"], 1, "'ram:few' is not a tier"),
        (["--stats", "/nowhere/at/all.json", "SCRIPT"], 1, "the folder /nowhere/at does not exist"),
        (["--stats-every", "5", "/nowhere/at/all.jsonl", "SCRIPT"], 1, "the folder /nowhere/at does not exist"),
        (["--stats-every", "5", "/", "SCRIPT"], 1, "cannot write /"),
        (["--stats-every", "often", "x.jsonl", "SCRIPT"], 2, "'often' is not a number of iterations"),
        (["--stats-every", "0", "x.jsonl", "SCRIPT"], 2, "'0' is not a number of iterations"),
        ([], 2, "SCRIPT"),
        (["--nonsense", "SCRIPT"], 2, "--help"),
    ],
)
def test_a_mistake_is_named_and_the_script_is_not_run(tmp_path, words, code, part, capsys):
    path = write(tmp_path, "open('ran', 'w')")
    assert main(["run", *(str(path) if word == "SCRIPT" else word for word in words)]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("memfit: error: ") and part in err and "\n  try: " in err
    assert not (tmp_path / "ran").exists()


# --- budgets that cannot be met


@pytest.mark.long
def test_a_share_that_cannot_be_met_names_the_smallest_budget_the_op_and_the_line(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--budget", "5%", "script.py", cwd=tmp_path)
    assert result.returncode == 3
    assert result.stdout.splitlines()[0].startswith("step 0") and len(result.stdout.splitlines()) == 1
    assert result.stderr.startswith("memfit: error: ")
    assert "aten::" in result.stderr and "KiB at once" in result.stderr
    assert f"script.py:{line_of(TRAINING, 'model(x)')}" in result.stderr
    percent = int(result.stderr.split("(--budget ")[1].split("%)")[0])
    assert memfit("run", "--budget", f"{percent + 5}%", "script.py", cwd=tmp_path).returncode == 0


@pytest.mark.long
def test_bytes_that_cannot_be_met_name_the_op_the_line_and_what_it_needs(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--budget", "20KiB", "script.py", cwd=tmp_path)
    assert result.returncode == 3
    assert "the budget of 20.00 KiB (20480 bytes) cannot be met: aten::" in result.stderr
    assert "needs at least" in result.stderr and "script.py:" in result.stderr


@pytest.mark.long
def test_a_script_that_catches_the_error_decides_its_own_exit_code(tmp_path):
    caught = "import torch\ntry:\n    torch.ones(10**6)\nexcept RuntimeError as e:\n    print(type(e).__name__)\n"
    write(tmp_path, caught)
    result = memfit("run", "--budget", "1MB", "script.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "BudgetError\n")


# --- what a newcomer has to be told


@pytest.mark.long
def test_the_limit_the_search_the_plan_the_sentence_and_the_sum_are_told_in_a_line_each(tmp_path):
    write(
        tmp_path,
        TRAINING.replace("randn(32, 64)", "randn(64, 256)")
        .replace("Linear(64, 64", "Linear(256, 256")
        .replace("(64, 1)", "(256, 1)"),
    )
    command = ("run", "--budget", "80%", "--tier", "ram", "--stats", "stats.json", "script.py", "--steps", "14")
    result = memfit(*command, cwd=tmp_path)
    limit, search, plan, sentence, last = result.stderr.splitlines()
    stats = json.loads((tmp_path / "stats.json").read_text())
    size = format_bytes(stats["budget_bytes"])
    assert limit == f"memfit: the limit is in force: {size}, 80 % of the peak"
    assert search.startswith("memfit: the peak of live tensors is ")
    assert search.endswith("and a plan is in force (training waits for it, 60 s at most)")
    assert plan.startswith("memfit: a plan is in force for iterations like this one: ")
    assert float(re.search(r"; a step is foreseen at (\d\.\d\d)x of its ops' time", plan).group(1)) >= 1
    assert last.startswith(f"memfit: budget {size}, 80 %, arena peak ") and "(tier ram) over 14 iterations" in last
    assert 0 < stats["planned_iterations"] < 12 and f"{stats['planned_iterations']} by a plan" in last
    waited = format_us((stats["stall_ns"] + stats["copy_ns"]) / 1e3)
    assert f"; waited {waited} of {stats['seconds']:.1f} s for copies; peak RSS " in last and waited != "0.00 us"
    assert last.endswith(f"; memfit's own records {format_bytes(stats['record_bytes'])}") and stats["record_bytes"] > 0
    assert sentence.startswith(f"memfit: trained 14 iterations within {size} (80 % of the peak), ")
    assert f", {stats['planned_iterations']} by a plan, " in sentence and "; next: " in sentence
    assert (
        f"took {format_bytes(stats['peak_rss_bytes'])} of host memory, {format_bytes(stats['tier_host_bytes'])} of"
        in sentence
    )
    assert stats["tier_host_bytes"] == stats["tier_footprint_bytes"] > 0
    assert stats["peak_rss_bytes"] > 100 << 20 and stats["tier"] == "ram" and stats["no_limit"] == ""


WANDERS = """
import os, sys, torch
os.makedirs("elsewhere", exist_ok=True)
os.chdir("elsewhere")
p = torch.zeros(10, requires_grad=True)
optimizer = torch.optim.SGD([p], lr=0.1)
p.sum().backward()
optimizer.step()
if len(sys.argv) > 1:
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_share_that_never_took_effect_is_an_exit_code_and_a_reason_but_the_scripts_own_code_wins(tmp_path):
    write(tmp_path, WANDERS)
    result = memfit("run", "--budget", "60%", "--stats", "stats.json", "script.py", cwd=tmp_path)
    assert result.returncode == 5 and "memfit: no budget took effect" in result.stderr
    assert "memfit: error: the budget of 60% never took effect" in result.stderr
    assert "the optimizer made one step" in result.stderr and "bytes" in result.stderr.splitlines()[-1]
    assert json.loads((tmp_path / "stats.json").read_text())["exit_code"] == 0  # and it lies where it was asked for
    assert memfit("run", "--budget", "60%", "script.py", "7", cwd=tmp_path).returncode == 7


@pytest.mark.long
def test_without_a_budget_none_is_missed_and_closed_streams_are_no_error(tmp_path):
    write(tmp_path, "import sys\nif len(sys.argv) < 2:\n    import torch\n    torch.ones(3) + 1\nsys.stderr.close()\n")
    for words in (["script.py"], ["--budget", "60%", "script.py", "--help"]):  # the other runs no op at all
        result = memfit("run", *words, cwd=tmp_path)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("program", [["SCRIPT"], ["-m", "some.module"]])
@pytest.mark.parametrize("option", [["--budget", "50%"], ["--budget=50%"]])
def test_a_budget_after_the_script_is_an_error_that_gives_both_ways_to_write_it(tmp_path, program, option, capsys):
    path = write(tmp_path, "open('ran', 'w')", "a script.py")
    words = [str(path) if word == "SCRIPT" else word for word in program]
    assert main(["run", *words, *option]) == 2
    err = capsys.readouterr().err
    assert "comes after the script" in err and "memfit run --budget 60% " in err
    explicit = shlex.split(err.split("script's own: memfit ")[1])
    assert explicit == ["run", "--", *words, *option] and not (tmp_path / "ran").exists()
    own, _ = _split(explicit)
    args = _parser().parse_args(own, argparse.Namespace(arguments=[], words=explicit))
    program = Program(words[-1], is_module=len(words) > 1)
    assert program_of(args) == (program, option)
    _check_options(args, program, option)  # raises nothing


FORKS = """
import os, sys, torch
x = torch.ones(1 << 20)
y = x + 1
child = os.fork()
if child == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(y.sum().item())
"""


@pytest.mark.long
def test_a_forked_child_that_exits_touches_neither_the_session_nor_the_statistics_nor_the_summary(tmp_path):
    write(tmp_path, FORKS)
    result = memfit("run", "--budget", "9MiB", "--stats", "stats.json", "script.py", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"{2.0 * (1 << 20)}\n"), result.stderr
    assert len(result.stderr.splitlines()) == 2
    assert json.loads((tmp_path / "stats.json").read_text())["exit_code"] == 0


@pytest.mark.long
def test_a_limit_on_addresses_leaves_a_session_and_one_that_is_too_low_is_named(tmp_path):
    write(tmp_path, TRAINING)
    limited = ["bash", "-c", 'ulimit -v 9000000; exec "$@"', "bash", sys.executable, "-m", "memfit", "run"]
    for words, code, part in (
        (["--budget", "60%", "--tier", "ram"], 0, "the limit is in force"),
        (["--budget", "8800MB"], 3, "does not give this process"),
    ):
        command = [*limited, *words, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == code and part in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_second_run_has_the_plan_of_the_first_unless_it_is_not_to(tmp_path):
    write(tmp_path, TRAINING.replace("64", "128").replace("Tanh(), ", "Tanh(), nn.Linear(128, 128), nn.GELU(), "))
    environment = {"MEMFIT_PLAN_CACHE": str(tmp_path / "plans")}

    def trained(*options: str) -> tuple[dict[str, object], str]:
        command = ("-m", "memfit", "run", "--budget", "60%", "--tier", "ram", "--moves", "swap", "--stats", "s.json",
                   *options, "script.py", "--steps", "14")  # fmt: skip
        done = run(*command, cwd=tmp_path, environment=environment)
        assert done.returncode == 0, done.stderr
        return json.loads((tmp_path / "s.json").read_text()), done.stderr

    first, told = trained("--no-plan-cache")
    assert first["plan_searches"] > 0 and first["kept_plans"] == 0 and not (tmp_path / "plans").exists()
    trained()
    second, told = trained()
    assert second["kept_plans"] == 1 and "as an earlier run has planned it: " in told
    assert trained("--no-plan-cache")[0]["kept_plans"] == 0


@pytest.mark.long
def test_on_a_terminal_a_line_comes_and_goes_and_the_rest_is_as_without_it(tmp_path):
    write(
        tmp_path,
        TRAINING.replace("for step", "import time\nfor step").replace("    print(", "    time.sleep(0.2); print("),
    )
    command = ("-m", "memfit", "run", "--budget", "100%", "--watch", "--stats-every", "4", "s.jsonl", "script.py",
               "--steps", "10")  # fmt: skip
    code, screen = on_terminal(command, tmp_path, columns=50)
    assert code == 0
    plain = run("script.py", "--steps", "10", cwd=tmp_path).stdout.splitlines()
    assert [row for row in screen.text if row.startswith("step ")] == plain
    assert not any(row.startswith("it ") for row in screen.text) and screen.text[-1] == ""
    live = [row for row in screen.shown if row.startswith("it ")]
    assert len(live) > 2 and all(" | arena " in row and len(row) < 50 for row in live)
    assert [json.loads(line)["iteration"] for line in (tmp_path / "s.jsonl").read_text().splitlines()] == [4, 8]


@pytest.mark.long
def test_where_there_is_no_terminal_a_short_run_has_the_lines_that_it_has_without_watch(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--watch", "--json", "script.py", cwd=tmp_path)
    assert result.returncode == 0 and json.loads(result.stderr)["iterations"] == 4


@pytest.mark.long
def test_ctrl_c_takes_the_line_away_and_ends_the_run_as_it_ends_python(tmp_path):
    write(tmp_path, "import os, signal, time\ntime.sleep(1.2)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    code, screen = on_terminal(("-m", "memfit", "run", "--watch", "script.py"), tmp_path)
    assert code == -signal.SIGINT and "KeyboardInterrupt" in screen.text
    assert any(row.startswith("it 0 | ") for row in screen.shown) and not any("it 0 | " in row for row in screen.text)


@pytest.mark.parametrize("option", [["--watch"], ["--stats-every", "2", "s.jsonl"], ["--no-plan-cache"], ["--json"]])
def test_a_module_is_found_behind_options_with_and_without_words_of_their_own(option):
    own, arguments = _split(["run", *option, "-m", "package.module", "--budget", "5"])
    args = _parser().parse_args(own, argparse.Namespace(arguments=arguments, words=own))
    assert program_of(args) == (Program("package.module", is_module=True), ["--budget", "5"])


@pytest.mark.long
def test_what_is_free_is_a_budget_that_is_said(tmp_path):
    write(tmp_path, TRAINING)
    result = memfit("run", "--budget", "auto", "script.py", cwd=tmp_path)
    assert result.returncode == 0
    assert result.stderr.startswith("memfit: the budget is ") and " of memory are free" in result.stderr
