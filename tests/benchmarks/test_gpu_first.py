"""The first minutes on a GPU: which steps run in which order, what its page says, and its steps on a CPU."""

import time

import pytest

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
        asked.append(name)
        made = Bench(name, options, 0.0)
        made.cells = {"a": {"status": "ok", "result": {}}, "b": {"status": "crash"}}
        made.save()
        return runner.Result("", None)

    monkeypatch.setattr(runner, "begin", lambda device, *_: (Options(tmp_path, device, resume=True), {}))
    monkeypatch.setattr(runner, "run_part", part)
    monkeypatch.setattr(first, "Bench", lambda *args: Bench(*args, run_cell=cell))
    return asked, results, tmp_path


def test_steps_run_in_the_order_of_what_is_learnt_and_the_page_has_a_line_for_each(order):
    asked, _, folder = order
    (result,) = first.run()
    assert asked[:7] == ["doctor", "probe", "loader", "fill", "register", "lstm", "search"]
    files = asked[7 : 7 + len(first.TESTS)]
    assert files == sorted(files) and "tests/on_gpu/test_sessions.py" in files
    assert asked[7 + len(files) :] == list(runner.PARTS)
    rows = result.tables[0].rows
    assert [row[0] for row in rows[:3]] == ["doctor", "probe", "loader"] and len(rows) == len(asked)
    assert rows[1][3] == "1 of 2 cells have a result"
    assert rows[2][3] == "bits equal; 7 of 12 iterations by a plan, 9 swaps, 1 plans refused, 0 derailments; no room"
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
    assert asked[-1] == list(runner.PARTS)[-1] and result.exit_code == 3


def test_resume_runs_only_the_steps_without_a_result(order):
    asked, results, _ = order
    next(first.run())
    asked.clear()
    next(first.run(resume=True))
    assert asked == ["probe", *runner.PARTS]  # whose cells are resumed by their own files


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
@pytest.mark.parametrize("name", ["fill", pytest.param("loader", marks=pytest.mark.slow), "lstm", "search"])
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
