"""Statistics that are appended while training goes on: whole lines, in the right file, and no run ends for them."""

from __future__ import annotations

import json
import os
import resource
from dataclasses import fields

import pytest

import memfit
from memfit.errors import InputError, UsageError
from memfit.running.session.stats import Stats
from memfit.running.session.stats_log import StatsLog, append
from running.session.test_watch import status, train

pytestmark = pytest.mark.timeout(120)


def rows_of(path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_nth_iteration_has_a_line_whose_differences_add_up_to_the_totals(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with memfit.session("60%", tier="ram") as session, session.log_stats("stats.jsonl", every=2):
        os.chdir("elsewhere")
        train(steps=7)
        total = session.stats
    rows = rows_of(tmp_path / "stats.jsonl")
    assert [row["iteration"] for row in rows] == [2, 4, 6] == [row["iterations"] for row in rows]
    assert {field.name for field in fields(Stats)} | {"fragmentation", "seconds", "plan"} <= set(rows[0])
    for way in ("out", "in"):
        assert (
            sum(row[f"bytes_{way}_since"] for row in rows) == rows[-1][f"bytes_{way}"] <= getattr(total, f"bytes_{way}")
        )
    assert rows[-1]["bytes_out"] > 0 and [row["iterations_since"] for row in rows] == [2, 2, 2]
    assert rows[-1]["seconds"] == pytest.approx(sum(row["seconds_since"] for row in rows), abs=0.1)
    waited = (rows[-1]["stall_ns"] + rows[-1]["copy_ns"]) / 1e9
    assert sum(row["waited_seconds_since"] for row in rows) == pytest.approx(waited)


def test_nothing_is_appended_after_the_block(tmp_path):
    with memfit.session(None) as session:
        with session.log_stats(tmp_path / "stats.jsonl"):
            train(steps=2)
        train(steps=2)
    assert len(rows_of(tmp_path / "stats.jsonl")) == 2


def test_a_file_that_cannot_be_written_is_an_error_at_once(tmp_path):
    session = memfit.session(None)
    with pytest.raises(InputError, match="the folder .*missing does not exist"):
        session.log_stats(tmp_path / "missing" / "stats.jsonl")
    with pytest.raises(InputError, match="directory"):
        session.log_stats(tmp_path)
    with pytest.raises(UsageError, match="every 0 iterations"):
        session.log_stats(tmp_path / "stats.jsonl", every=0)


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path, capsys):
    path = tmp_path / "stats.jsonl"
    log = StatsLog(path, 1)
    path.unlink()
    path.symlink_to("/dev/full")
    for _ in range(3):
        log.iteration_ended(status)
    (warning,) = capsys.readouterr().err.splitlines()
    assert "statistics could not be appended" in warning and "No space left" in warning


def test_a_line_that_does_not_fit_leaves_no_part_of_itself(tmp_path):
    path = tmp_path / "stats.jsonl"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    append(str(path), b"whole\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(OSError):
            append(str(path), b"twenty-one bytes or more\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"whole\n"


def test_a_run_goes_on_in_the_file_of_another_after_a_line_that_was_cut_short(tmp_path):
    path = tmp_path / "stats.jsonl"
    path.write_text('{"iteration": 1}\n{"iterat')
    log = StatsLog(path, 1)
    log.begin(status(1.0, bytes_out=3))
    log.iteration_ended(lambda: status(3.5, bytes_out=10, iterations=1))
    _, cut, row = path.read_text().splitlines()
    assert cut == '{"iterat' and json.loads(row)["bytes_out_since"] == 7 and json.loads(row)["seconds_since"] == 2.5
    assert path.read_text().endswith("\n")
