"""The quarter of an hour on a GPU: which steps run in which order, what its page says, and its steps on a CPU."""

import time

import pytest

from benchmarks.common.result import Table
from benchmarks.gpu import first, runner
from benchmarks.gpu.bench import Bench, Options, read
from benchmarks.gpu.cells import run_cell

TRAINED = {"same_bits": True, "iterations": 12, "planned_iterations": 7, "plans": 1, "swaps": 9, "derailments": 0,
           "plan_mismatches": 1, "unplanned": ["no room"], "peak_footprint_bytes": 5, "budget_bytes": 6}  # fmt: skip


@pytest.fixture
def order(monkeypatch, tmp_path):
    """Steps and parts note that they ran, instead of running; what each gives can be set in `results`."""
    asked, results = [], {}

    def cell(request, limit_s, start):
        name = request["call"].partition(":")[2]
        asked.append(request.get("path", name))
        filled = {"filled_bytes": 1 << 30, "fill_s": 1, "end_s": 2, "register_fresh_ms": 1, "register_touched_ms": 1}
        found = TRAINED | filled | {"size_bytes": 1 << 30, "lines": ["ok  engine", "9 passed in 3 s"]}
        return {"status": "ok", "seconds": 1.0, "result": found} | results.get(name, {})

    def part(name, options, about, seconds):
        asked.append((name, options.models, options.percents, options.modes, options.resume))
        made = Bench(name, options, 0.0)
        cells = {f"{model}/plain": {"status": "ok", "result": {}} for model in options.models}
        made.cells |= cells | {f"{options.models[0]}/60": {"status": "crash"}}
        made.save()
        return runner.Result("", None, [Table(f"{name} of {len(made.cells)}", ["a"], [])])

    def begin(device, start, out, quick, resume, *_):
        return Options(tmp_path, device, resume=resume), {}

    monkeypatch.setattr(runner, "begin", begin)
    monkeypatch.setattr(runner, "run_part", part)
    monkeypatch.setattr(first, "Bench", lambda *args: Bench(*args, run_cell=cell))
    return asked, results, tmp_path


MAIN, REST, PERCENTS = ("llama", "resnet152", "gpt2_medium"), ("resnet50", "vgg16"), (60, 80, 40)
STAGES = [
    ("sweep", MAIN, PERCENTS, None, False),
    ("peers", MAIN, None, ("checkpoint", "save_on_cpu"), False),
    ("sweep", REST, PERCENTS, None, True),  # the first one's cells stay
]


def test_what_a_budget_costs_comes_first_and_the_page_has_a_line_for_each_step(order):
    asked, _, folder = order
    (result,) = first.run()
    assert asked[0] == "doctor" and asked[1:4] == STAGES
    assert asked[4:11] == ["compiled", "shapes", "loader", "lstm", "search", "fill", "register"]
    files = asked[11:]
    assert len(files) == len(first.TESTS) and files == sorted(files) and "tests/on_gpu/test_sessions.py" in files
    rows = result.tables[0].rows
    assert [row[0] for row in rows[:5]] == ["doctor", "budgets", "other ways", "budgets of two more", "compiled"]
    assert len(rows) == len(asked)
    assert rows[1][3] == "3 of 4 cells have a result" and rows[3][3] == "2 of 3 cells have a result"
    assert rows[4][3] == "bits equal; 7 of 12 iterations by a plan, 9 swaps, 1 plans refused, 0 derailments; no room"
    assert [table.title for table in result.tables[1:]] == ["sweep of 7", "peers of 4"]
    assert result.exit_code == 0 and read(folder / "first.json")["complete"]


def test_a_wrong_bit_and_a_budget_that_was_passed_are_in_the_page_and_the_exit_code(order):
    _, results, _ = order
    results["lstm"] = {"result": TRAINED | {"same_bits": False}}
    results["loader"] = {"result": TRAINED | {"peak_footprint_bytes": 7}}
    (result,) = first.run()
    said = {row[0]: row[3] for row in result.tables[0].rows}
    assert said["lstm with dropout"].startswith("BITS DIFFER")
    assert "BUDGET PASSED" in said["loader"]
    assert result.exit_code == 3


@pytest.mark.parametrize("wrong", [{"same_bits": False}, {"peak_footprint_bytes": 7}])
def test_either_alone_is_a_failure(order, wrong):
    order[1]["search"] = {"result": TRAINED | wrong}
    assert next(first.run()).exit_code == 3


def test_a_step_that_failed_says_why_and_the_others_run(order):
    asked, results, _ = order
    results["loader"] = {"status": "crash", "error": "the process ended with signal 6", "result": None}
    (result,) = first.run()
    assert ["loader", "crash", "1", "the process ended with signal 6"] in result.tables[0].rows
    assert asked[-1] == first.TESTS[-1].request["path"] and result.exit_code == 3


def test_resume_runs_only_the_steps_without_a_result(order):
    asked, results, _ = order
    next(first.run())
    asked.clear()
    next(first.run(resume=True))
    assert asked == [(*stage[:-1], True) for stage in STAGES]  # whose cells are resumed by their own files


def test_without_time_steps_are_named_as_not_run(order):
    asked, _, _ = order
    (result,) = first.run(limit=0.0)
    assert "doctor" not in asked and "loader" not in asked
    assert "loader" in result.notes[0] and result.exit_code == 3


def test_on_a_cpu_the_steps_that_need_a_gpu_are_left_out(order):
    asked, _, _ = order
    next(first.run(device="cpu", quick=True))
    assert "register" not in asked and "loader" in asked and not any("on_gpu" in name for name in asked)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["fill", "lstm", "search", "shapes", *(pytest.param(n, marks=pytest.mark.slow) for n in ("loader", "compiled"))],
)
def test_a_step_gives_on_a_cpu_what_its_line_says(name):
    began = time.monotonic()
    request = {"call": f"benchmarks.gpu.first_cells:{name}", "device": "cpu", "quick": True, "limit_s": 120.0}
    outcome = run_cell(request, 120.0, "spawn")
    assert outcome["status"] == "ok", outcome
    step = next(step for step in first.CHECKS if step.call == name)
    assert "bits equal" in step.line(outcome["result"])
    assert "BUDGET PASSED" not in step.line(outcome["result"])
    assert 0 < outcome["seconds"] <= time.monotonic() - began
    if name == "fill":
        assert outcome["result"]["bytes_out"] >= outcome["result"]["filled_bytes"] // 3
    else:
        assert outcome["result"]["planned_iterations"] >= 4 and outcome["result"]["swaps"] > 0


@pytest.mark.long
def test_a_program_that_fails_is_an_error_with_its_last_line():
    request = {"call": "benchmarks.gpu.first_cells:tests", "device": "cpu", "path": "no/such/file.py", "limit_s": 60.0}
    outcome = run_cell(request, 60.0, "spawn")
    assert outcome["status"] == "error" and "no/such/file.py" in outcome["error"]
