"""The figures of a run on the simulated GPU, from rows written by hand."""

from __future__ import annotations

import pytest

from benchmarks.gpu import simulated, simulated_kinds

PLAIN = {"rows": [{"calls": 100, "waits": 1}] * 10, "periods_ms": [20.0] * 10, "peak_bytes": 1 << 30}


def limited(*, plan: bool = True) -> dict:
    """Return what a run of 40 steps found: each an iteration of 3 swaps and 3 prefetches.

    The first plan is in force at the end of the 5th step, and the second of the 9th; the 20th does not follow it.
    """
    followed = [step > 5 and step != 20 for step in range(1, 41)]
    rows = [
        {"calls": 130, "waits": 3, "to_host": 7, "iterations": step, "plans": (step >= 5) + (step >= 9) if plan else 0,
         "planned_iterations": sum(followed[:step]) if plan else 0, "swaps": 3 * step, "prefetches": 3 * step,
         "recomputations": 0, "derailments": 0}
        for step in range(1, 41)
    ]  # fmt: skip
    found = {"rows": rows, "periods_ms": [60.0] + [40.0] * 31 + [22.0] * 8, "unplanned": [], "stats": {},
             "driver": {"before": 0, "adoption": 7 << 20, "training": 8 << 20, "end": 9 << 20}}  # fmt: skip
    return found | ({"plan": {"swaps": 3, "drops": 0, "foreseen_us": 21_000.0, "compute_us": 20_000.0}} if plan else {})


def row_of(found: dict) -> list[str]:
    known = {"model": "vgg16", "share": 70, "peak_bytes": 1 << 30, "budget_bytes": 8 << 20, "plain_ms": 20.0}
    (row,) = simulated.table({"rows": [found | known]}).rows
    return row


def test_a_row_has_what_is_waited_for_and_the_last_steps(monkeypatch, tmp_path):
    monkeypatch.setattr(simulated, "bound", lambda *_: 0.04)
    found = simulated.measured(PLAIN, limited(), 8 << 20, tmp_path)
    assert found["step_ms"] == 22.0 and found["off"] == pytest.approx(22 / 21 - 1)
    assert found["foreseen"] == pytest.approx(0.05) and found["bound"] == 0.04
    assert (found["first_planned"], found["last_plan"], found["unplanned_after"]) == (6, 9, 1)
    assert found["calls_a_copy"] == pytest.approx(5) and found["waits_a_step"] == 2
    assert found["to_host_first_bytes"] == 7
    every = f"{(60 + 31 * 40 + 8 * 22) / (40 * 20):.2f}x"
    assert row_of(found) == [
        "vgg16", "1.00", "70%", "20.0", "3.0x", "6", "9", "1.100x", "+5.0%", "+4.8%", "+4.0%", every, "2", "1.0000"
    ]  # fmt: skip


def test_without_a_plan_nothing_is_foreseen(tmp_path):
    row = row_of(simulated.measured(PLAIN, limited(plan=False), 8 << 20, tmp_path))
    assert row[5:7] == ["-", "-"] and row[8:11] == ["-", "-", "-"]


def test_a_kind_of_steps_stalls_where_one_takes_a_step_longer_than_its_plain_ones():
    epoch = ("whole", "whole", "half")
    plain = {"periods_ms": [90.0, 20.0, 10.0, 20.0, 20.0, 12.0]}
    limited = {"periods_ms": [99.0, 41.0, 70.0, 40.0, 23.0, 21.0, 22.0, 24.0, 22.0]}
    whole, half = (simulated_kinds.measured(epoch, plain, limited, kind) for kind in ("whole", "half"))
    assert (whole["plain_ms"], whole["first_ms"], whole["worst_ms"]) == (20.0, 99.0, 41.0)
    assert (whole["stalls"], half["stalls"]) == ([2], [])
    assert (half["plain_ms"], half["first_ms"], half["last_ms"]) == (11.0, 70.0, 21.5)
    known = {"model": "vgg16", "case": "an epoch"}
    line, _ = simulated_kinds.table({"rows": [known | whole, known | half]}).rows
    assert line == ["vgg16", "an epoch", "whole", "20.0", "4.95x", "1", "2", "2.05x", "1.18x"]
