"""What is said of a rehearsal on the simulated H200, and of how the simulated one compares with the measured one."""

from __future__ import annotations

import pytest

from benchmarks.common.result import write_json
from benchmarks.gpu import calibration, rehearsal, virtual


def test_each_cell_has_the_seconds_of_the_virtual_clock_and_the_sum_so_far(tmp_path):
    cells = {
        "llama/plain": {"status": "ok", "seconds": 99.0, "result": {"simulated_s": 7.0}},
        "llama/60": {"status": "ok", "result": {"simulated_s": 20.0, "settled": False, "planned_steps": 2}},
    }
    write_json(tmp_path / "sweep.json", {"cells": cells})
    failed = {"compiled": {"status": "error", "error": "no Triton here", "result": None}}
    write_json(tmp_path / "first.json", {"cells": failed})
    rows = rehearsal.rows_of(tmp_path)
    assert rehearsal.table({"rows": rows}).rows == [
        ["sweep", "llama/plain", "ok", "10", "10", ""],
        ["sweep", "llama/60", "ok", "23", "33", "no plan for some steps"],
        ["first", "compiled", "error", "3", "36", "no Triton here"],
    ]


def test_a_process_that_is_not_on_the_simulator_has_no_virtual_clock(monkeypatch):
    monkeypatch.delenv("SIMULATED_GPU", raising=False)
    assert not virtual.is_simulated() and virtual.elapsed_s() is None


def test_steps_by_the_first_plan_are_those_after_the_one_that_it_begins_in_and_two_more():
    run = {"step_ms": [900.0, 80.0, 50.0, 52.0, 70.0, 60.0, 41.0, 31.0, 33.0], "plans": [0, 0, 0, 0, 1, 1, 1, 1, 1],
           "bytes_out": [0, 0, 0, 0, 0, 0, 0, 10**9, 5 * 10**9]}  # fmt: skip
    found = calibration.figures_of(run)
    assert found == {"first step": 900.0, "step without a plan": 51.0, "step by the first plan": pytest.approx(32.0),
                     "that, for a GB that leaves": pytest.approx(8.0)}  # fmt: skip
    assert "step by the first plan" not in calibration.figures_of(run | {"plans": [0] * 9})


def test_what_the_h200_took_is_read_from_its_own_results():
    found = calibration.measured()
    assert found["100"]["plain step"] == pytest.approx(201.9, abs=0.1)
    assert found["60"]["first step"] == pytest.approx(24389.8, abs=0.1)
    assert found["60"]["step by the first plan"] == pytest.approx(502, abs=1)
    assert found["80"]["step without a plan"] == pytest.approx(459, abs=1) and len(found["80"]) == 2


def test_a_row_says_how_far_off_the_simulated_figure_is():
    figures = {"measured": {"60": {"first step": 200.0, "step by the first plan": 50.0}},
               "simulated": {"60": {"first step": 210.0}}}  # fmt: skip
    assert calibration.table(figures).rows == [["60 %", "first step", "200", "210", "+5.0%"]]
