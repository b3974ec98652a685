"""Plans that swap, make again, or do both, executed: iteration times over the plain run's, by budget and link.

The ram tier behind a link of a given speed. All modes of one budget and link take turns. Training waits for its plans,
so that a run of few steps has them; the steps that count are those under the last plan, its trial left out.
`torch.utils.checkpoint` is not among the modes: it keeps to no budget, the program's author says what it cuts, and it
moves the statistics of batch norms twice, so that the run would be another. The decoder has none: checkpointing each
of its layers is compared with a joint plan whose budget is the peak that this has.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.common.examples import TIMED, Run, Sizes, run_worker, sized
from benchmarks.common.result import Result, Row, Table

PLANNED = ("swap", "recompute", "joint")
MODES = ("reactive", *PLANNED)
SIZES: Sizes = {**TIMED, "lstm": ["--width", "256", "--batch", "64"], "gan": ["--width", "64", "--batch", "128"]}
_SETTLED = 3  # steps under a new plan until its trial is over
_UNPLANNED = 16  # steps of runs without plans


def settled(run: Run) -> list[dict[str, Any]]:
    """Return the steps under the last plan but its first ones; without a plan, the last half."""
    steps = run["steps"]
    changes = [i for i, (before, after) in enumerate(pairwise(steps)) if after.get("plans", 0) > before.get("plans", 0)]
    return list(steps[changes[-1] + _SETTLED :] if changes else steps[len(steps) // 2 :])


def iteration_seconds(steps: Sequence[dict[str, Any]], per_iteration: int) -> list[float]:
    """Return the seconds of each iteration: so many steps of an optimizer each, since a model may have two."""
    return [
        steps[i + per_iteration]["at"] - steps[i]["at"] for i in range(0, len(steps) - per_iteration, per_iteration)
    ]


def measured(run: Run) -> Row:
    """Return what one run in a session did: the seconds of its iterations, and facts of its last plan."""
    if run["error"]:
        return {"error": run["error"].partition("\n")[0]}
    stats, steps = run["stats"], run["steps"]
    names = ("plans", "plan_mismatches", "derailments", "recomputations", "discards", "prefetches",
             "failed_recomputations", "peak_footprint_bytes", "budget_bytes")  # fmt: skip
    half = len(steps) // 2
    per_iteration = max(1, round((len(steps) - 1 - half) / max(1, steps[-1]["iterations"] - steps[half]["iterations"])))
    longest = max(after["at"] - before["at"] for before, after in pairwise(steps))
    found = {"seconds": iteration_seconds(settled(run), per_iteration), "steps_per_iteration": per_iteration,
             "longest_step_s": longest, "plan": run["plan"]}  # fmt: skip
    return found | {name: stats[name] for name in names}


def compare(name: str, budget: str, link: float, steps: int, repeats: int) -> Row:
    """Return the figures of an example at one budget and link (GB/s), by mode; those of the plain run are seconds."""
    plain: list[Run] = []
    modes: dict[str, list[Row]] = {mode: [] for mode in MODES}
    for _ in range(repeats):
        plain.append(run_worker(name, sized(name, _UNPLANNED, SIZES), "plain", threads=1))
        for mode in MODES:
            options: dict[str, Any] = {"plan": mode != "reactive", "link": link * 1e9, "waits": True}
            options["moves"] = mode if mode in PLANNED else "swap"
            count = steps if mode in PLANNED else _UNPLANNED
            run = run_worker(name, sized(name, count, SIZES), budget, threads=1, tier="ram", **options)
            modes[mode].append(measured(run))
    per_iteration = max(row.get("steps_per_iteration", 1) for rows in modes.values() for row in rows)
    plain_s = [statistics.median(iteration_seconds(settled(run), per_iteration)) for run in plain]
    return {"example": name, "budget": budget, "link_gb_per_s": link, "plain_s": plain_s, "modes": modes}


def beside_checkpoints(link: float, steps: int, repeats: int) -> Row:
    """Return the seconds of the decoder plain, with its layers checkpointed, and by joint plans within that peak."""
    example, few = "decoder", sized("decoder", _UNPLANNED, SIZES)
    unlimited = run_worker(example, [*few, "--checkpoint"], "100%", threads=1, tier="ram", plan=False)
    peaks = {"checkpointed": unlimited["stats"]["peak_live_bytes"]}
    peaks["plain"] = run_worker(example, few, "100%", threads=1, tier="ram", plan=False)["stats"]["peak_live_bytes"]
    plain: list[float] = []
    checkpointed: list[float] = []
    joint: list[Row] = []
    for _ in range(repeats):
        for found, arguments in ((plain, few), (checkpointed, [*few, "--checkpoint"])):
            ran = run_worker(example, arguments, "plain", threads=1)
            found.append(statistics.median(iteration_seconds(settled(ran), 1)))
        run = run_worker(example, sized(example, steps, SIZES), peaks["checkpointed"], threads=1, tier="ram",
                         plan=True, link=link * 1e9, waits=True, moves="joint")  # fmt: skip
        joint.append(measured(run))
    return {"example": example, "link_gb_per_s": link, "peak_bytes": peaks, "plain_s": plain,
            "checkpointed_s": checkpointed, "modes": {"joint": joint}}  # fmt: skip


def checkpoint_table(figures: dict[str, Any]) -> Table:
    """Return one row a link."""
    columns = ["example", "peak with checkpoints", "link", "checkpointed", "joint plan within that peak"]
    cells = []
    for row in figures["rows"]:
        peaks, joint = row["peak_bytes"], ratio(row, "joint")
        slower = statistics.median(row["checkpointed_s"]) / statistics.median(row["plain_s"])
        cells.append([row["example"], f"{peaks['checkpointed'] / peaks['plain']:.0%}", f"{row['link_gb_per_s']:g} GB/s",
                      f"{slower:.2f}x", "-" if joint is None else f"{joint:.2f}x"])  # fmt: skip
    return Table("Beside torch.utils.checkpoint around each layer", columns, cells)


def ratio(row: Row, mode: str) -> float | None:
    """Return the mode's median iteration over the plain one; None where it did not run, or found no plan."""
    runs = [run for run in row["modes"][mode] if run.get("seconds") and (run["plan"] or mode not in PLANNED)]
    ran = [statistics.median(run["seconds"]) for run in runs]
    return statistics.median(ran) / statistics.median(row["plain_s"]) if ran else None


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
    steps: int = 40,
    repeats: int = 1,
) -> Iterator[Result]:
    """Run each example in each mode, at each budget and over each link; what is done is written after each example."""
    rows: list[Row] = []
    for name in examples:
        rows += [compare(name, budget, link, steps, repeats) for budget in budgets for link in links]
        figures = {"steps": steps, "rows": rows}
        yield Result("moves", figures, [table(figures)])
    if "decoder" in examples:
        beside = {"steps": steps, "rows": [beside_checkpoints(link, steps, repeats) for link in links]}
        yield Result("checkpoints", beside, [checkpoint_table(beside)])
