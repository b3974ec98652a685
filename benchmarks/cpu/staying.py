"""How many iterations run by a plan: in loops that do not always do the same, the examples, and other scripts.

An iteration counts if its plan was in force from its beginning to its end and was right. The first ten do not count.
Every loop is trained plainly too, and what can be seen of both compared bit by bit. Training waits for plans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch

from benchmarks.common import companions, deviating
from benchmarks.common.examples import EXAMPLES, run_worker, script_of, sized
from benchmarks.common.result import Result, Row, Table
from benchmarks.cpu.info_minimum import KINDS
from memfit.running.planned.making import Making
from memfit.running.session import Session

FIRST = 10  # iterations that do not count
STEPS = 60
LOOPS = (*deviating.LOOPS, *companions.LOOPS)
SCRIPTS = ("bf16_ema_swa", "diffusion", "gan", "gaussian_process", "gcn", "graphs", "muon", "nanogpt", "neural_ode",
           "recommender")  # fmt: skip
"""Of `kinds/`: their argument is the number of steps. The batches of `graphs` and `recommender` vary in size."""


def loop(name: str, budget: str, steps: int = STEPS) -> Row:
    """Train by one of the loops within a share of its peak, and plainly."""
    trained = companions.trained if name in companions.LOOPS else deviating.trained
    plain, counts = trained(name, steps), []
    with Session(budget, "ram", device="cpu") as session:
        limited = trained(name, steps, lambda _: counts.append((session.planned_iterations, session.stats.iterations)))
        stats = session.stats
    equal = all(map(torch.equal, plain, limited))
    return {"name": name, "budget": budget, "equal": equal, **_shares(counts), "plans": stats.plans,
            "unplanned_ops": stats.unplanned_ops, "missing_ops": stats.missing_ops}  # fmt: skip


def script(name: str, path: str, arguments: Sequence[str], budget: str) -> Row:
    """Train a script within a share of its peak."""
    found = run_worker(path, arguments, budget, tier="ram", waits=True)
    counts = [(step["planned_iterations"], step["iterations"]) for step in found["steps"]]
    row = {"name": name, "budget": budget, "error": found["error"].splitlines()[:1]}
    return row | (_shares(counts) if len(counts) > FIRST + 1 else {"planned": 0, "iterations": 0})


@contextmanager
def _waiting_for_plans() -> Iterator[None]:
    """Let training wait for every plan, as the worker does: otherwise steps this short would be over before."""
    done = Making.done
    with patch.object(Making, "done", lambda self, timeout=0.0: done(self, None)):
        yield


def _shares(counts: Sequence[tuple[int, int]]) -> Row:
    (first, begin), (last, end) = counts[FIRST], counts[-1]
    return {"planned": last - first, "iterations": end - begin}


def table(figures: Sequence[Row]) -> Table:
    """Return one row a program."""
    rows = [
        [row["name"], row["budget"], f"{row['planned']} of {row['iterations']}",
         f"{100 * row['planned'] / row['iterations']:.0f} %" if row["iterations"] else "-",
         {True: "equal", False: "different", None: ""}[row.get("equal")]]
        for row in figures
    ]  # fmt: skip
    return Table("Iterations by a plan, after the tenth", ["program", "budget", "by a plan", "share", "bits"], rows)


def run(
    *,
    budget: str = "60%",
    script_budget: str = "70%",
    loops: Sequence[str] = LOOPS,
    examples: Sequence[str] = tuple(EXAMPLES),
    scripts: Sequence[str] = SCRIPTS,
) -> Iterator[Result]:
    """Count the iterations by a plan."""
    torch.set_num_threads(1)
    with _waiting_for_plans():
        figures = [loop(name, budget) for name in loops]
    figures += [script(name, script_of(name), sized(name, STEPS), script_budget) for name in examples]
    figures += [script(f"kinds/{name}", str(KINDS / f"{name}.py"), [str(STEPS)], script_budget) for name in scripts]
    yield Result("staying", figures, [table(figures)])
