"""Workers in turn: one runs at a time, all run to their end, and what they were stopped for is no part of a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.examples import Worker
from benchmarks.common.in_turn import STEPS_A_TURN, run_in_turn
from benchmarks.cpu import moves
from benchmarks.worker import COPYING_S

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import sys, time, torch
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight])
for step in range(int(sys.argv[1])):
    time.sleep(0.02)
    with open(sys.argv[2], "a") as log:
        log.write(sys.argv[3])
    weight.sum().backward()
    optimizer.step()
if len(sys.argv) > 4:
    raise SystemExit("it failed")
"""


def worker(folder: Path, name: str, steps: int, *more: str) -> Worker:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return Worker(str(script), [str(steps), str(folder / "log"), name, *more], "plain", {"threads": 1})


@pytest.mark.long
def test_one_of_them_runs_at_a_time_for_some_steps(tmp_path):
    steps = {"a": 2 * STEPS_A_TURN, "b": STEPS_A_TURN + 1}
    found = run_in_turn({name: worker(tmp_path, name, count) for name, count in steps.items()})
    turns = ["a" * STEPS_A_TURN, "b" * STEPS_A_TURN, "a" * STEPS_A_TURN, "b"]
    assert (tmp_path / "log").read_text() == "".join(turns)
    assert {name: len(run["steps"]) for name, run in found.items()} == steps
    stops = [i + 1 for i, step in enumerate(found["a"]["steps"]) if step["stopped"]]
    assert stops == [STEPS_A_TURN, 2 * STEPS_A_TURN]


@pytest.mark.long
def test_copies_under_way_have_time_to_end_before_a_worker_stops(tmp_path):
    steps = run_in_turn({"a": worker(tmp_path, "a", STEPS_A_TURN + 1)})["a"]["steps"]
    assert steps[-1]["at"] - steps[-2]["at"] >= COPYING_S


def test_an_iteration_in_which_a_worker_stopped_is_not_counted():
    steps = [{"at": float(i * i), "stopped": i in (2, 5)} for i in range(9)]
    assert moves.iterations_by_turn(steps, 1) == [[1, 3], [7, 9], [13, 15]]
    assert moves.iterations_by_turn(steps, 2) == [[4], [], [28]]


def test_iterations_are_compared_with_the_plain_ones_of_their_turn():
    assert moves.slower_by_turn([[2.0, 2.0], [30.0], []], [[1.0], [10.0, 10.0, 40.0], [1.0]]) == [2, 3]


@pytest.mark.slow
def test_one_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="it failed"):
        run_in_turn({"a": worker(tmp_path, "a", 1, "fails"), "b": worker(tmp_path, "b", 2)})


def test_steps_count_from_where_the_last_plan_of_all_is_in_force():
    steps = [{"at": float(i), "plans": int(i >= 4) + int(i >= 9)} for i in range(20)]
    assert moves.settled_from({"steps": steps}) == 8 + moves._SETTLED
    assert moves.settled_from({"steps": [{"at": 0.0}] * 20}) == 10
