"""`torchrun ... -m memfit run`: each rank has its files, one speaks for all, and one that fails ends all."""

from __future__ import annotations

import json
import re
import time
from textwrap import indent

import pytest

from cli.helpers_cli import TRAINING, line_of, memfit, write
from cli.helpers_ranks import DATA_PARALLEL, lines, one_by_one, torchrun
from memfit.cli import main

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

FAILING = DATA_PARALLEL.replace("    # THEN", "    if step == 5 and rank == 1:\n        torch.randn(3000, 1000)")
SECONDS = 30  # in which every rank has ended; a collective's own timeout is half an hour


def test_ranks_print_what_they_do_plainly_and_have_files_of_their_own(tmp_path):
    write(tmp_path, DATA_PARALLEL)
    plain = torchrun("script.py", 12, cwd=tmp_path)
    words = ("-m", "memfit", "run", "--budget", "70%", "--stats", "stats.json", "--stats-every", 4, "log.jsonl")
    limited = torchrun(*words, "script.py", 12, cwd=tmp_path)
    assert plain.returncode == limited.returncode == 0, limited.stderr
    assert sorted(limited.stdout.splitlines()) == sorted(plain.stdout.splitlines()) != []
    assert sorted(path.name for path in tmp_path.glob("*.json*")) == [
        "log.rank0.jsonl", "log.rank1.jsonl", "stats.rank0.json", "stats.rank1.json"
    ]  # fmt: skip
    for rank in range(2):
        stats = json.loads((tmp_path / f"stats.rank{rank}.json").read_text())
        assert (stats["rank"], stats["world_size"], stats["iterations"]) == (rank, 2, 12)
        assert stats["bytes_out"] > 0 and stats["peak_footprint_bytes"] <= stats["budget_bytes"] or stats["growths"]
        assert len((tmp_path / f"log.rank{rank}.jsonl").read_text().splitlines()) == 3
    for part in ("the limit is in force", "trained 12 iterations"):
        assert [line.partition(" rank ")[2][:2] for line in lines(limited, part)] == ["0:"]


def test_a_rank_whose_budget_cannot_be_met_is_named_and_ends_all(tmp_path):
    write(tmp_path, FAILING)
    began = time.monotonic()
    done = torchrun("-m", "memfit", "run", "--budget", "8MiB", "--map", "never", "script.py", 10**6, cwd=tmp_path)
    assert time.monotonic() - began < SECONDS and done.returncode == 1
    [error] = lines(done, "memfit: rank 1: error: ")
    assert f"script.py:{line_of(FAILING, 'randn(3000')}" in error and "aten::randn needs at least" in error
    assert re.search(r"rank +: 1 \(local_rank: 1\)\n +exitcode +: 3 ", done.stderr)


def test_without_torchrun_the_others_see_that_a_rank_has_gone(tmp_path):
    write(tmp_path, FAILING)
    began = time.monotonic()
    command = ("-m", "memfit", "run", "--budget", "8MiB", "--map", "never", "script.py", 10**6)
    first, second = one_by_one(*command, cwd=tmp_path)
    assert time.monotonic() - began < SECONDS
    assert second.returncode == 3 and lines(second, "memfit: rank 1: error: the budget of 8.00 MiB")
    assert first.returncode == 1 and "onnection closed by peer" in first.stderr


@pytest.mark.slow
def test_a_script_that_begins_its_sessions_itself_names_the_rank_too(tmp_path):
    before, loop, after = FAILING.partition("for step")
    begun = "import memfit\nwith memfit.session('8MiB', map='never'):\n"
    write(tmp_path, before + begun + indent(loop + after, "    "))
    done = torchrun("script.py", 10**6, cwd=tmp_path)
    assert done.returncode == 1 and lines(done, "[rank1]: memfit.errors.BudgetError: memfit: the budget of 8.00 MiB")


def test_a_plan_may_be_for_all_ranks_or_each_rank_has_its_own(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "")
    (tmp_path / "plan.json").write_text("{}")
    assert main(["run", "--plan", "plan.json", "script.py"]) == 1
    assert "rank 1: error: plan.json" in capsys.readouterr().err
    (tmp_path / "plan.rank1.json").write_text("{}")
    assert main(["run", "--plan", "plan.json", "script.py"]) == 1
    assert "rank 1: error: plan.rank1.json" in capsys.readouterr().err


@pytest.mark.slow
def test_processes_that_the_script_starts_itself_are_said_to_have_no_budget(tmp_path):
    group = "import torch.distributed as dist\nfrom torch.testing._internal.distributed.fake_pg import FakeStore\n"
    group += "dist.init_process_group('fake', rank=0, world_size=2, store=FakeStore())\n"
    write(tmp_path, group + TRAINING)
    done = memfit("run", "--budget", "70%", "script.py", cwd=tmp_path)
    [warning] = lines(done, "warning: the script")
    assert done.returncode == 0 and "a group of 2 processes of which memfit was not told" in warning
    told = torchrun("-m", "memfit", "run", "--budget", "70%", "script.py", cwd=tmp_path)
    assert told.returncode == 0 and lines(told, "warning: the script") == []


@pytest.mark.slow
def test_each_rank_records_a_trace_of_its_own(tmp_path):
    write(tmp_path, DATA_PARALLEL)
    done = torchrun("-m", "memfit", "trace", "script.py", "-o", "trace.json.gz", "--", 5, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.glob("*.gz")) == ["trace.rank0.json.gz", "trace.rank1.json.gz"]
