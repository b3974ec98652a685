"""The figures of a run on the simulated GPU, from rows written by hand."""

from __future__ import annotations

import pytest

from benchmarks.gpu import simulated

PLAIN = {"rows": [{"calls": 100, "waits": 1}] * 10, "times_ms": [{"step": 20.0}] * 10, "peak_bytes": 1 << 30}


def limited(*, plan: bool = True) -> dict:
    """Return what a run of 40 steps found: each an iteration of 3 swaps and 3 prefetches, planned from the 15th on."""
    rows = [
        {"calls": 130, "waits": 3, "iterations": step, "planned_iterations": max(step - 15, 0), "plans": 1,
         "swaps": 3 * step, "prefetches": 3 * step, "recomputations": 0, "derailments": 0}
        for step in range(40)
    ]  # fmt: skip
    found = {"rows": rows, "times_ms": [{"step": 99.0}] * 32 + [{"step": 22.0}] * 8, "unplanned": [], "stats": {},
             "driver": {"before": 0, "adoption": 7 << 20, "training": 8 << 20, "end": 9 << 20}}  # fmt: skip
    return found | ({"plan": {"swaps": 3, "drops": 0, "foreseen_us": 21_000.0, "compute_us": 20_000.0}} if plan else {})


def test_a_row_has_the_last_steps_and_the_iterations_after_the_tenth(monkeypatch, tmp_path):
    monkeypatch.setattr(simulated, "bound", lambda *_: 0.04)
    found = simulated.measured(PLAIN, limited(), 8 << 20, tmp_path)
    assert found["step_ms"] == 22.0 and found["off"] == pytest.approx(22 / 21 - 1)
    assert found["foreseen"] == pytest.approx(0.05) and found["bound"] == 0.04
    assert found["planned_share"] == 24 / 29
    assert found["calls_a_copy"] == pytest.approx(5) and found["waits_a_step"] == 2
    row = found | {"model": "vgg16", "share": 70, "peak_bytes": 1 << 30, "budget_bytes": 8 << 20, "plain_ms": 20.0}
    assert simulated.table({"rows": [row]}).rows == [
        ["vgg16", "1.00", "70%", "20.0", "1.100x", "+5.0%", "+4.8%", "+4.0%", "83%", "2", "5.0", "1.0000"]
    ]


def test_without_a_plan_nothing_is_foreseen(tmp_path):
    found = simulated.measured(PLAIN, limited(plan=False), 8 << 20, tmp_path)
    row = found | {"model": "vgg16", "share": 70, "peak_bytes": 1 << 30, "budget_bytes": 8 << 20, "plain_ms": 20.0}
    assert simulated.table({"rows": [row]}).rows[0][5:8] == ["-", "-", "-"]
