"""A quarter of an hour on a GPU, in one command or two: what memfit costs there comes first, and tests come last.

Each cell has a limit on its time and is a process of its own; results are kept as they come, so that `--resume` goes
on where a run ended. A page at the end has a line for each step, and the tables of the parts follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.common.paths import ROOT
from benchmarks.common.result import GIB, Result, Row, Table
from benchmarks.gpu import runner
from benchmarks.gpu.bench import Bench, Options, measured, read
from benchmarks.gpu.cells import Outcome
from benchmarks.gpu.virtual import is_simulated

NAME = "first"
_CALLS = "benchmarks.gpu.first_cells:"
_SAID = 150  # characters of a line of the page


def _bits(found: Row) -> str:
    return "bits equal" if found["same_bits"] else "BITS DIFFER"


def _trained(found: Row) -> str:
    held = "" if _held(found) else "; BUDGET PASSED"
    planned = f"{found['planned_iterations']} of {found['iterations']} iterations by a plan"
    refused = f"{found['plan_mismatches']} plans refused, {found['derailments']} derailments"
    why = "".join(f"; {reason}" for reason in found["unplanned"])
    return f"{_bits(found)}{held}; {planned}, {found['swaps']} swaps, {refused}{why}"


def _filled(found: Row) -> str:
    filled = f"{found['filled_bytes'] / GIB:.2f} GiB in {found['fill_s']:.2f} s"
    return f"{filled}, back in {found['end_s']:.2f} s; {_bits(found)}"


def _registered(found: Row) -> str:
    fresh, touched = found["register_fresh_ms"], found["register_touched_ms"]
    return f"{found['size_bytes'] / GIB:.2f} GiB in {fresh:.0f} ms, {touched:.0f} ms of pages that are there"


def _doctor(found: Row) -> str:
    return "; ".join(line for line in found["lines"] if not line.startswith(("ok", "next"))) or "all ok"


def _tests(found: Row) -> str:
    return str(found["lines"][-1]) if found["lines"] else "no output"


class Step(NamedTuple):
    """One cell: its key, function and limit, whether it needs a GPU, what to say of its result."""

    key: str
    call: str
    limit_s: float
    gpu: bool
    line: Callable[[Row], str]
    request: Row = {}


class Stage(NamedTuple):
    """A part of the benchmarks with some of its cells."""

    line: str
    part: str
    models: tuple[str, ...]
    percents: tuple[int, ...] | None = None
    modes: tuple[str, ...] | None = None


# The order is of what is learnt: what a budget costs, beside other ways to save memory; whether plans come for compiled
# code and for two shapes; then what an entry costs, and bits.
BEFORE = (Step("doctor", "doctor", 120.0, False, _doctor),)
_MAIN, _REST, _PERCENTS = ("llama", "resnet152", "gpt2_medium"), ("resnet50", "vgg16"), (60, 80, 40)
STAGES = (
    Stage("budgets", "sweep", _MAIN, percents=_PERCENTS),
    Stage("other ways", "peers", _MAIN, modes=("checkpoint", "save_on_cpu")),
    Stage("budgets of two more", "sweep", _REST, percents=_PERCENTS),
)
CHECKS = (
    Step("compiled", "compiled", 90.0, False, _trained),
    Step("two shapes in turn", "shapes", 60.0, False, _trained),
    Step("loader", "loader", 60.0, False, _trained),
    Step("lstm with dropout", "lstm", 60.0, False, _trained),
    Step("convolutions that search", "search", 60.0, False, _trained),
    Step("fill and end", "fill", 90.0, False, _filled),
    Step("register", "register", 30.0, True, _registered),
)
_FILES = sorted((ROOT / "tests" / "on_gpu").glob("test_*.py"))
TESTS = tuple(
    Step(f"tests: {path.stem}", "tests", 240.0, True, _tests, {"path": str(path.relative_to(ROOT))}) for path in _FILES
)


def run(
    *,
    device: Annotated[str, {"help": "cuda, cuda:N, or cpu to try the steps out (with --quick)"}] = "cuda",
    quick: Annotated[bool, {"help": "tiny sizes: whether it runs, not how fast"}] = False,
    resume: Annotated[bool, {"help": "keep the results there are, and run the steps that are missing"}] = False,
    retry: Annotated[bool, {"help": "with --resume: run steps that failed again"}] = False,
    limit: Annotated[float, {"help": "seconds for all steps, once the engine is built"}] = 840.0,
    start: Annotated[str, {"choices": list(runner.STARTS), "help": "how a step's process begins"}] = "auto",
    out: Path | None = None,
) -> Iterator[Result]:
    """Run the stages and steps in the order of what is learnt; yield one page and the parts' tables at the end."""
    options, about = runner.begin(device, start, out, quick, resume, retry, None)
    end = time.monotonic() + limit
    bench = Bench(NAME, options, end, about)
    _run(bench, () if is_simulated() else BEFORE)
    pages, tables = [], {}
    for number, stage in enumerate(STAGES):
        # A part's file has the cells of an earlier stage already.
        its = replace(options, models=stage.models, percents=stage.percents, modes=stage.modes,
                      resume=options.resume or stage.part in [other.part for other in STAGES[:number]])  # fmt: skip
        line, tables[stage.part] = _part(stage, its, about, end - time.monotonic())
        pages.append(line)
    _run(bench, CHECKS if is_simulated() else (*CHECKS, *TESTS))
    left = bench.skipped + [row[0] for row in pages if row[1] != "ok"]
    bench.save(complete=not bench.skipped)
    notes = [f"not run, or not whole: {', '.join(left)}; --resume runs it"] if left else []
    shown = [page(bench.cells, pages), *(table for each in tables.values() for table in each)]
    yield Result("", None, shown, notes, exit_code=3 if left or not _good(bench.cells) else 0)


def _run(bench: Bench, steps: tuple[Step, ...]) -> None:
    for step in steps:
        if not step.gpu or bench.options.device != "cpu":
            bench.run(step.key, _CALLS + step.call, step.limit_s, memfit=True, **step.request)


def _part(stage: Stage, options: Options, about: Row, seconds: float) -> tuple[list[str], list[Table]]:
    """Run cells of a part, whose results are in its own file; return the stage's line of the page, and the tables."""
    began = time.monotonic()
    result = runner.run_part(stage.part, options, about, max(seconds, 0.0))
    cells = read(options.out / f"{stage.part}.json").get("cells", {})
    its = {key: cell for key, cell in cells.items() if key.partition("/")[0] in stage.models}
    said = f"{len(measured(its))} of {len(its)} cells have a result"
    line = [stage.line, "ok" if result.exit_code == 0 else "not whole", f"{time.monotonic() - began:.0f}", said]
    return line, list(result.tables)


def _good(cells: dict[str, Outcome]) -> bool:
    """Whether every step that ran has a result, and none of them wrong bits or too many bytes."""
    rows = measured(cells)
    return len(rows) == len(cells) and all(row.get("same_bits", True) and _held(row) for row in rows.values())


def _held(found: Row) -> bool:
    return bool(found.get("peak_footprint_bytes", 0) <= found.get("budget_bytes", 0))


def page(cells: dict[str, Outcome], parts: list[list[str]]) -> Table:
    """Return the page: a line for each step in the order in which they ran."""
    before, after = (
        [_line(step, cells[step.key]) for step in steps if step.key in cells] for steps in (BEFORE, (*CHECKS, *TESTS))
    )
    return Table("A quarter of an hour", ["step", "outcome", "seconds", "found"], [*before, *parts, *after])


def _line(step: Step, cell: Outcome) -> list[str]:
    said = step.line(cell["result"]) if cell["status"] == "ok" else cell.get("error", "")
    return [step.key, cell["status"], f"{cell.get('seconds', 0.0):.0f}", said[:_SAID]]
