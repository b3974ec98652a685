"""`memfit verify --nproc-per-node N` compares every rank of a run with the same rank of a plain one."""

from __future__ import annotations

import json

import pytest

from cli.helpers_cli import line_of, write
from cli.helpers_ranks import DATA_PARALLEL
from memfit.cli import main

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

# Adds to the parameters of one rank after a step, in the second run and those after it.
DIFFERING = """\
    if step == 4 and rank == 1:
        from pathlib import Path
        counter = Path("runs")
        runs = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(runs))
        if runs == 2 or runs == 5:
            with torch.no_grad():
                model(torch.randn(2, 96)).add_(1)
                next(model.parameters()).mul_(2)
"""


@pytest.fixture
def verify(tmp_path, capsys, monkeypatch):
    """What `memfit verify` did, run in this process: its exit code and what it printed."""

    def of(text, *words):
        write(tmp_path, text)
        monkeypatch.chdir(tmp_path)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        code = main(["verify", "script.py", "--nproc-per-node", "2", *map(str, words)])
        return (code, *capsys.readouterr())

    return of


@pytest.mark.slow
def test_every_rank_is_compared_and_reported(verify):
    code, out, err = verify(DATA_PARALLEL, "--budget", "70%", "--", 5)
    assert code == 0, err
    assert [line[:22] for line in out.splitlines() if line.startswith("rank")] == [
        "rank 0: equal: 5 x los", "rank 1: equal: 5 x los"
    ]  # fmt: skip
    assert out.count("budget run:") == 2
    assert err == "next: torchrun --nproc-per-node 2 -m memfit run --budget 70% script.py 5\n"


@pytest.mark.slow
def test_the_verdict_as_json_has_all_ranks_and_none_when_no_limit_took_effect(verify):
    code, out, err = verify(DATA_PARALLEL, "--budget", "70%", "--steps", 4, "--json", "--", 100)
    assert code == 0, err
    verdict = json.loads(out)
    assert verdict["equal"] and [rank["steps"] for rank in verdict["ranks"]] == [4, 4]
    for rank in verdict["ranks"]:
        assert rank["compared"]["weight"] == 32 and rank["difference"] is None and rank["plain"]["stats"] is None
        assert rank["limited"]["stats"]["bytes_out"] > 0
    code, out, err = verify(DATA_PARALLEL, "--budget", "70%", "--json", "--", 1)
    assert (code, out) == (5, "") and "nothing was verified" in err, err


def test_one_rank_that_differs_is_found_out(verify):
    code, out, err = verify(DATA_PARALLEL.replace("    # THEN\n", DIFFERING), "--budget", "70%", "--json", "--", 7)
    assert code == 4, err
    verdict = json.loads(out)
    assert not verdict["equal"] and not verdict["ranks"][1]["equal"]
    assert verdict["ranks"][1]["difference"]["step"] == 6


def test_a_rank_that_cannot_meet_the_budget_is_named(verify):
    failing = DATA_PARALLEL.replace("    # THEN", "    if rank == 1 and step == 3:\n        torch.randn(9000, 1000)")
    code, out, err = verify(failing, "--budget", "8MiB", "--map", "never", "--", 100)
    assert (code, out) == (3, "")
    assert err.startswith("memfit: error: rank 1: the budget of 8.00 MiB") and "aten::randn" in err


@pytest.mark.slow
def test_a_script_that_fails_on_one_rank_is_said_to_fail_plainly(verify):
    failing = DATA_PARALLEL.replace("    # THEN", "    assert rank == 0 or step < 3, 'of its own'")
    code, _, err = verify(failing, "--budget", "70%", "--", 100)
    assert code == 1 and "failed when run plainly (exit code 1)" in err and "rank 1:" in err
    assert "AssertionError: of its own" in err and f"line {line_of(failing, 'assert rank')}" in err


@pytest.mark.slow
def test_one_process_is_a_group_too_and_none_is_not(verify):
    code, out, err = verify(DATA_PARALLEL, "--nproc-per-node", 1, "--budget", "70%", "--", 5)
    assert code == 0 and out.startswith("rank 0: equal: "), err
    assert verify(DATA_PARALLEL, "--nproc-per-node", 0, "--budget", "70%")[0] == 2
