"""The benchmark of tables counts what a step moves against the rows that it uses; that of mapped ops can be resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.common.recommender import draws
from benchmarks.cpu import mapping, tables


def test_few_rows_are_named_often_and_all_are_rows_of_the_table():
    found = np.concatenate([draws(1 << 14, 512, 4, step).ravel() for step in range(20)])
    assert 0 <= found.min() < 100 and (1 << 14) - 100 < found.max() < 1 << 14
    _, counts = np.unique(found, return_counts=True)
    popular = np.sort(counts)[::-1][: (1 << 14) // 100].sum()
    assert 0.4 < popular / len(found) < 0.8
    assert (draws(1 << 14, 512, 4, 3) == draws(1 << 14, 512, 4, 3)).all()
    assert (draws(1 << 14, 512, 4, 3) != draws(1 << 14, 512, 4, 4)).any()


def steps(count: int, seconds: float, bytes_in: int = 0, bytes_out: int = 0) -> list[dict[str, float]]:
    names = {"bytes_in": 0, "bytes_out": 0, "faults": 2, "fault_ns": 10**6}
    names |= {"mapped_bytes_in": bytes_in, "mapped_bytes_out": bytes_out}
    return [
        {"at": seconds * k, "stopped": False} | {name: each * k for name, each in names.items()} for k in range(count)
    ]


def test_bytes_are_those_of_each_row_once_in_and_once_out_and_time_is_that_of_a_plain_step():
    case = tables.Case(1 << 10, 8, samples=16, fields=2)
    used = np.mean([len(np.unique(draws(1 << 10, 16, 2, step))) for step in range(5, 10)]) * 8 * 4
    run = {
        "steps": steps(10, 0.3, int(used), int(2 * used)),
        "error": "",
        "stats": {"peak_footprint_bytes": 7, "peak_frame_bytes": 3},
    }
    row = {"case": "a", "tier": "disk", "budget": 1, "table": 8, "equal": True, "error": ""}
    found = row | tables.figures(case, run, {"steps": steps(10, 0.2)}, 5)
    assert found["bytes_ratio"] == pytest.approx(1.5, rel=0.1) and found["time_ratio"] == pytest.approx(1.5)
    assert found["faults"] == 2 and found["fault_ms"] == 1
    assert tables.table([found]).rows[0][4:8] == ["equal", "200 ms", "1.50x", "75%"]
    assert "infeasible" in tables.table([row | {"error": "too little"}]).rows[0]


def test_two_optimizers_step_twice_an_iteration():
    case = tables.Case(1 << 10, 8, samples=16, fields=2, optimizer="sparse_adam")
    run = {"steps": steps(20, 0.3), "error": "", "stats": {"peak_footprint_bytes": 7, "peak_frame_bytes": 3}}
    found = tables.figures(case, run, {"steps": steps(20, 0.1)}, 5)
    assert found["plain_ms"] == pytest.approx(200) and found["time_ratio"] == pytest.approx(3)
    assert found["used"] == 3 * tables.Case(1 << 10, 8, 16, 2).bytes_used(range(5, 10))


def test_what_was_measured_is_not_measured_again(monkeypatch, tmp_path):
    measured = []

    def measure(example, share, *_):
        measured.append((example, share))
        return {"example": example, "share": share}

    monkeypatch.setattr(mapping, "RESULTS", tmp_path)
    monkeypatch.setattr(mapping, "measure", measure)
    for result in mapping.run(examples=("gan", "vgg"), shares=(0.5,), resume=True):
        (tmp_path / "mapping.json").write_text(json.dumps(result.figures))
    assert [row["example"] for row in json.loads((tmp_path / "mapping.json").read_text())] == ["gan", "vgg"]
    assert not list(mapping.run(examples=("vgg",), shares=(0.5,), resume=True))
    assert measured == [("gan", 0.5), ("vgg", 0.5)]
