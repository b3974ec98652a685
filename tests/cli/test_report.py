"""`memfit report` on a small trace of a chain of layers."""

from __future__ import annotations

import json
import pickle
import re

import pytest

from cli.small_trace import SIZE, chain_in, run
from memfit.cli import main
from snapshot_builder import event, frame, snapshot

STATS = {
    "exit_code": 0, "budget_bytes": 4 * SIZE, "iterations": 12, "planned_iterations": 5, "stall_ns": 1, "copy_ns": 2,
    "seconds": 3.5, "peak_footprint_bytes": 4 * SIZE, "peak_live_bytes": 6 * SIZE, "bytes_out": SIZE, "bytes_in": SIZE,
    "tier": "ram", "recomputations": 2, "recompute_ns": 1000, "growths": 0, "peak_growth_bytes": 0,
    "peak_rss_bytes": 1 << 28,
}  # fmt: skip


@pytest.fixture
def trace(tmp_path):
    return chain_in(tmp_path)


def test_a_report_has_the_trace_and_a_plan(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    out, err = run(capsys, "report", trace, "--budget", "70%", "--points", "3", "--effort", "0.02", "-o", str(path))
    assert out.startswith("Within 4.20 MiB, 70 % of its peak") and err == f"next: open {path} in a browser\n"
    text = path.read_text()
    assert text.startswith("<!doctype html>") and 'id="lanes"' in text and 'id="slider"' in text


def test_a_plans_file_is_drawn_as_it_is(tmp_path, capsys, trace):
    plan, path = str(tmp_path / "p.json"), tmp_path / "r.html"
    run(capsys, "plan", trace, "--budget", "80%", "-o", plan)
    out, _ = run(capsys, "report", trace, plan, "--points", "0", "-o", str(path))
    assert out.startswith(f"Within {SIZE * 6 * 80 // 100 / SIZE:.2f} MiB, 80 %")
    assert 'id="slider"' not in path.read_text()


def test_two_iterations_are_compared(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    out, _ = run(capsys, "report", trace, "--against", trace, "--points", "0", "-o", str(path))
    assert out.startswith("The peak is 6.00 MiB") and "Against " in path.read_text()


def test_a_snapshot_of_torch_and_a_runs_statistics_are_shown_beside_it(tmp_path, capsys, trace):
    path, other, stats = tmp_path / "r.html", tmp_path / "s.pickle", tmp_path / "stats.json"
    # Layer 1 by its whole path, and 5 MiB from a line that the trace does not have.
    lines = [("/home/me/m.py", 1, SIZE), ("/home/me/chain.py", 1, 5 * SIZE)]
    blocks = [event("alloc", 1 << 30 | line * size, size, frames=[frame(name, line)]) for name, line, size in lines]
    other.write_bytes(pickle.dumps(snapshot(blocks)))
    stats.write_text(json.dumps(STATS))
    run(capsys, "report", trace, str(stats), "--against", str(other), "--points", "0", "-o", str(path))
    text = path.read_text()
    assert "Against s.pickle" in text and "have 6.00 MiB, those at this one's 6.00 MiB" in text
    rows = [re.sub("<[^>]*>", " ", row).split() for row in text.split('id="changes"')[1].split("<tr>")[2:]]
    found = {row[0]: " ".join(row[1:7]) for row in rows}
    assert found[".../me/chain.py:1"] == "5.00 MiB 0 B -5.00 MiB"
    assert found["m.py:2"] == "0 B 1.00 MiB +1.00 MiB" and "m.py:1" not in found
    assert "12, 5 of them by a plan" in text and 'id="budget">4.00 MiB' in text


@pytest.mark.parametrize(("field", "value"), [("iterations", None), ("seconds", "long"), ("tier", 3)])
def test_statistics_that_were_edited_are_named_with_the_field(tmp_path, capsys, trace, field, value):
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps({name: given for name, given in STATS.items() if name != field or value}
                                | ({field: value} if value else {})))  # fmt: skip
    assert main(["report", trace, str(stats), "--points", "0", "-o", str(tmp_path / "r.html")]) == 1
    assert f"field {field} " in capsys.readouterr().err and not (tmp_path / "r.html").exists()


def test_a_file_that_is_there_is_kept_unless_it_is_forced(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    path.write_text("mine")
    assert main(["report", trace, "--points", "0", "-o", str(path)]) == 2
    assert path.read_text() == "mine" and "--force" in capsys.readouterr().err
    run(capsys, "report", trace, "--points", "0", "-o", str(path), "--force")
    assert path.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["p.json", "--budget", "70%"], 2, "exclude each other"),
        (["--points", "1"], 2, "a curve has two or more"),
        (["--budget", "1KiB", "--points", "0"], 3, "1.00 KiB"),
        (["--against", "nowhere.json"], 1, "nowhere.json"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_file(tmp_path, capsys, trace, arguments, code, says):
    path = tmp_path / "r.html"
    assert main(["report", trace, *arguments, "-o", str(path)]) == code
    assert says in capsys.readouterr().err and not path.exists()
