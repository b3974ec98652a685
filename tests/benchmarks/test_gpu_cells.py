"""Cells of the GPU benchmarks: whatever one does, the caller gets an outcome."""

import os
import time
from pathlib import Path

import pytest

from benchmarks.gpu.cells import run_cell

HERE = str(Path(__file__).parent)


@pytest.fixture(autouse=True)
def cells_can_be_imported(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_cell_runs_in_another_process_and_its_result_comes_back(start):
    outcome = run_cell({"call": "gpu_cells:fine", "number": 21}, 60, start)
    assert outcome["status"] == "ok", outcome
    assert outcome["result"]["twice"] == 42
    assert outcome["result"]["pid"] != os.getpid()


def test_an_error_has_its_text_what_was_noted_and_where_it_was_raised():
    outcome = run_cell({"call": "gpu_cells:failing"}, 30)
    assert outcome["status"] == "error"
    assert outcome["error"].startswith("ValueError: not like this")
    assert "gpu_cells.py" in outcome["error"]
    assert outcome["result"] == {"before": 1}
    assert "Traceback" in outcome["log"]


@pytest.mark.long
def test_a_cell_that_hangs_is_ended_and_its_log_says_where_it_hung():
    started = time.monotonic()
    outcome = run_cell({"call": "gpu_cells:hanging"}, 3)
    assert time.monotonic() - started < 10
    assert outcome["status"] == "timeout"
    assert outcome["result"] == {"before": 1}
    assert "hanging" in outcome["log"]


def test_a_crash_takes_nothing_along():
    outcome = run_cell({"call": "gpu_cells:crashing"}, 30)
    assert outcome["status"] == "crash"
    assert "SIGABRT" in outcome["error"]
    assert run_cell({"call": "gpu_cells:ending"}, 30)["error"].endswith("exit code 3")


def test_the_probe_sees_that_swapped_out_tensors_are_guarded():
    request = {"call": "benchmarks.gpu.probe_engine:guard", "device": "cpu", "quick": True}
    outcome = run_cell(request, 60)
    assert outcome["status"] == "ok", outcome
    found = outcome["result"]
    assert "not in memory now" in found["raw_pointer_of_one_away"]["raised"]
    assert found["op_brings_right_bytes"] and found["in_place_on_one_away"] and found["door_brings_in_and_pins"]
    assert found["to_host"] == found["after_session"] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.long
@pytest.mark.parametrize("work", ["adam", "embedding"])
def test_ops_on_mapped_storages_give_the_same_bits(work):
    request = {"call": "benchmarks.gpu.mapped:calls", "device": "cpu", "quick": True, "work": work}
    outcome = run_cell(request, 60)
    assert outcome["status"] == "ok", outcome
    found = outcome["result"]
    assert found["plain_ms"] > 0 and found["mapped"]["ms"] > 0
    assert found["mapped"]["same_bits"] and found["mapped"]["mapped_storages"] > 0


def test_an_unknown_function_is_an_error():
    assert run_cell({"call": "gpu_cells:missing"}, 30)["status"] == "error"
