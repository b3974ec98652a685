"""Plans that swap, make again, or do both, executed: iteration times over the plain run's, by budget and link.

The ram tier behind a link of a given speed. All modes of one budget and link run side by side, one of them at a time
for some steps, and an iteration is compared with the plain ones of the same turn. Training waits for its plans, so that
a run of few steps has them, and from five eighths of the steps on no plan is made for another link or other times; the
steps that count are those from which on every mode has its last plan, the plans' trials left out.
`torch.utils.checkpoint` is not among the modes: it keeps to no budget, the program's author says what it cuts, and it
moves the statistics of batch norms twice, so that the run would be another. The decoder has none: checkpointing each
of its layers is compared with a joint plan whose budget is the peak that this has.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from benchmarks.common.examples import TIMED, Run, Sizes, Worker, run_worker, sized
from benchmarks.common.in_turn import run_in_turn
from benchmarks.common.result import Result, Row, Table

PLANNED = ("swap", "recompute", "joint")
MODES = ("reactive", *PLANNED)
SIZES: Sizes = {**TIMED, "lstm": ["--width", "256", "--batch", "64"], "gan": ["--width", "64", "--batch", "128"]}
_SETTLED = 3  # steps under a new plan until its trial is over
_FEW = 4  # steps, from whose end the peak is known


def settled_from(run: Run) -> int:
    """Return the step from which on the last plan is in force and has been tried; without a plan, the middle one."""
    steps: list[dict[str, Any]] = run["steps"]
    changes = [i for i, (before, after) in enumerate(pairwise(steps)) if after.get("plans", 0) > before.get("plans", 0)]
    return changes[-1] + _SETTLED if changes else len(steps) // 2


def iterations_by_turn(steps: Sequence[dict[str, Any]], per_iteration: int) -> list[list[float]]:
    """Return the seconds of each turn's iterations: so many steps of an optimizer each, since a model may have two.

    One during which the worker stopped is left out.
    """
    turns: list[list[float]] = [[]]
    for first in range(0, len(steps) - per_iteration, per_iteration):
        if any(step["stopped"] for step in steps[first : first + per_iteration]):
            turns.append([])
        else:
            turns[-1].append(steps[first + per_iteration]["at"] - steps[first]["at"])
    return turns


def slower_by_turn(turns: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> list[float]:
    """Return the median iteration over the plain one, turn by turn: those of one turn meet the same machine."""
    both = zip(turns, plain, strict=True)
    return [statistics.median(own) / statistics.median(other) for own, other in both if own and other]


def steps_per_iteration(run: Run) -> int:
    """Return how many steps of optimizers one iteration of a run in a session has."""
    steps: list[dict[str, Any]] = run["steps"]
    half = len(steps) // 2
    iterations: int = steps[-1]["iterations"] - steps[half]["iterations"]
    return max(1, round((len(steps) - 1 - half) / max(1, iterations)))


def in_turn(workers: Mapping[str, Worker]) -> tuple[float, dict[str, Row]]:
    """Run workers in turn; return the median iteration of "plain" in seconds, and what was measured of the others."""
    runs = run_in_turn(workers)
    whole = [run for run in runs.values() if "stats" in run and not run["error"]]
    since = max((settled_from(run) for run in whole), default=0)
    per_iteration = max((steps_per_iteration(run) for run in whole), default=1)
    turns = {
        name: iterations_by_turn(run["steps"][since:], per_iteration) for name, run in runs.items() if not run["error"]
    }
    plain = turns["plain"]
    rows = {name: measured(run, turns.get(name, []), plain) for name, run in runs.items() if name != "plain"}
    return statistics.median(chain(*plain)), rows


def measured(run: Run, turns: Sequence[Sequence[float]], plain: Sequence[Sequence[float]]) -> Row:
    """Return an iteration's seconds and its ratio to a plain one, by turn; of a session, facts of its last plan too."""
    if run["error"]:
        return {"error": run["error"].partition("\n")[0]}
    found: Row = {"seconds": [*chain(*turns)], "slower": slower_by_turn(turns, plain)}
    if "stats" not in run:
        return found
    names = ("plans", "plan_mismatches", "derailments", "recomputations", "discards", "prefetches",
             "failed_recomputations", "peak_footprint_bytes", "budget_bytes")  # fmt: skip
    return found | {"plan": run["plan"]} | {name: run["stats"][name] for name in names}


def repeated(workers: Mapping[str, Worker], repeats: int) -> Row:
    """Run workers in turn, so many times; return the medians of "plain" in seconds, and the others' rows by name."""
    found = [in_turn(workers) for _ in range(repeats)]
    modes = {name: [rows[name] for _, rows in found] for name in workers if name != "plain"}
    return {"plain_s": [plain_s for plain_s, _ in found], "modes": modes}


def compare(name: str, budget: str, link: float, steps: int, repeats: int) -> Row:
    """Return the figures of an example at one budget and link (GB/s), by mode; those of the plain run are seconds."""
    arguments = sized(name, steps, SIZES)
    workers = {"plain": Worker(name, arguments, "plain", {"threads": 1})}
    workers |= {mode: limited_worker(name, arguments, budget, link, mode, steps) for mode in MODES}
    return {"example": name, "budget": budget, "link_gb_per_s": link, "steps": steps} | repeated(workers, repeats)


def limited_worker(
    name: str, arguments: Sequence[str], budget: str | int, link: float, mode: str, steps: int
) -> Worker:
    """Return the worker of a mode: within a budget, over a link (GB/s), for so many steps."""
    options = {"threads": 1, "tier": "ram", "link": link * 1e9, "waits": True, "keeps_plans_from": 5 * steps // 8,
               "plan": mode != "reactive"}  # fmt: skip
    return Worker(name, arguments, budget, options | {"moves": mode if mode in PLANNED else "swap"})


def beside_checkpoints(link: float, steps: int, repeats: int) -> Row:
    """Return the figures of the decoder with its layers checkpointed, and with joint plans within that peak."""
    example, few, many = "decoder", sized("decoder", _FEW, SIZES), sized("decoder", steps, SIZES)
    unlimited = run_worker(example, [*few, "--checkpoint"], "100%", threads=1, tier="ram", plan=False)
    peaks = {"checkpointed": unlimited["stats"]["peak_live_bytes"]}
    peaks["plain"] = run_worker(example, few, "100%", threads=1, tier="ram", plan=False)["stats"]["peak_live_bytes"]
    workers = {"plain": Worker(example, many, "plain", {"threads": 1}),
               "checkpointed": Worker(example, [*many, "--checkpoint"], "plain", {"threads": 1}),
               "joint": limited_worker(example, many, peaks["checkpointed"], link, "joint", steps)}  # fmt: skip
    return {"example": example, "link_gb_per_s": link, "steps": steps, "peak_bytes": peaks} | repeated(workers, repeats)


def checkpoint_table(figures: dict[str, Any]) -> Table:
    """Return one row a link."""
    columns = ["example", "peak with checkpoints", "link", "checkpointed", "joint plan within that peak"]
    cells = []
    for row in figures["rows"]:
        peaks = row["peak_bytes"]
        ratios = [ratio(row, mode) for mode in ("checkpointed", "joint")]
        cells.append([row["example"], f"{peaks['checkpointed'] / peaks['plain']:.0%}", f"{row['link_gb_per_s']:g} GB/s",
                      *("-" if one is None else f"{one:.2f}x" for one in ratios)])  # fmt: skip
    return Table("Beside torch.utils.checkpoint around each layer", columns, cells)


def ratio(row: Row, mode: str) -> float | None:
    """Return the mode's iteration over the plain one; None where it did not run, or found no plan."""
    runs = [run for run in row["modes"][mode] if run.get("slower") and (mode not in PLANNED or run["plan"])]
    return statistics.median(chain.from_iterable(run["slower"] for run in runs)) if runs else None


def prediction_error(row: Row, mode: str) -> float | None:
    """Return how much longer an iteration was foreseen than it took, as a part of it; None without a plan."""
    ran = [run for run in row["modes"][mode] if run.get("seconds") and run["plan"].get("predicted_us")]
    errors = [run["plan"]["predicted_us"] / 1e6 / statistics.median(run["seconds"]) - 1 for run in ran]
    return statistics.median(errors) if errors else None


def table(figures: dict[str, Any]) -> Table:
    """Return one row an example, budget and link."""
    columns = ["example", "budget", "link", "plain iteration", *MODES, "foreseen (joint)", "swaps, drops (joint)"]
    return Table("Plans executed, by what they may do", columns, [_line(row) for row in figures["rows"]])


def _line(row: Row) -> list[str]:
    ratios = [ratio(row, mode) for mode in MODES]
    error, last = prediction_error(row, "joint"), row["modes"]["joint"][-1]
    plan = last.get("plan") or {}
    cells = [row["example"], row["budget"], f"{row['link_gb_per_s']:g} GB/s"]
    cells.append(f"{1e3 * statistics.median(row['plain_s']):.0f} ms")
    cells += ["-" if one is None else f"{one:.2f}x" for one in ratios]
    return [*cells, "-" if error is None else f"{error:+.0%}", f"{plan.get('swaps', 0)}, {plan.get('drops', 0)}"]


def run(
    *,
    examples: Sequence[str] = tuple(SIZES),
    budgets: Sequence[str] = ("60%", "40%", "25%"),
    links: Sequence[float] = (1.0, 4.0),
    steps: int = 72,
    repeats: int = 1,
) -> Iterator[Result]:
    """Run each example in each mode, at each budget and over each link; what is done is written after each example."""
    rows: list[Row] = []
    for name in examples:
        rows += [compare(name, budget, link, steps, repeats) for budget in budgets for link in links]
        figures = {"rows": rows}
        yield Result("moves", figures, [table(figures)])
    if "decoder" in examples:
        beside = {"rows": [beside_checkpoints(link, steps, repeats) for link in links]}
        yield Result("checkpoints", beside, [checkpoint_table(beside)])
