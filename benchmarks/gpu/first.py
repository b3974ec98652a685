"""What to run in the first minutes on a GPU, in one command: what everything else stands on comes first.

Each step has a limit on its time and is a process of its own; results are kept as they come, so that `--resume` goes
on where a run ended. A page at the end has a line for each step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from benchmarks.common.paths import ROOT
from benchmarks.common.result import GIB, Result, Row, Table
from benchmarks.gpu import runner
from benchmarks.gpu.bench import Bench, Options, measured, read
from benchmarks.gpu.cells import Outcome

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


# The order is of what is learnt: whether it works at all, whether plans come on, what an entry costs, then bits.
BEFORE = (Step("doctor", "doctor", 120.0, False, _doctor),)
CHECKS = (
    Step("loader", "loader", 60.0, False, _trained),
    Step("fill and end", "fill", 90.0, False, _filled),
    Step("register", "register", 30.0, True, _registered),
    Step("lstm with dropout", "lstm", 60.0, False, _trained),
    Step("convolutions that search", "search", 60.0, False, _trained),
)
_FILES = sorted((ROOT / "tests" / "on_gpu").glob("test_*.py"))
TESTS = tuple(
    Step(f"tests: {path.stem}", "tests", 240.0, True, _tests, {"path": str(path.relative_to(ROOT))}) for path in _FILES
)
_PROBE_S = 110.0


def run(
    *,
    device: Annotated[str, {"help": "cuda, cuda:N, or cpu to try the steps out (with --quick)"}] = "cuda",
    quick: Annotated[bool, {"help": "tiny sizes: whether it runs, not how fast"}] = False,
    resume: Annotated[bool, {"help": "keep the results there are, and run the steps that are missing"}] = False,
    retry: Annotated[bool, {"help": "with --resume: run steps that failed again"}] = False,
    limit: Annotated[float, {"help": "seconds for all steps, once the engine is built"}] = 1600.0,
    start: Annotated[str, {"choices": list(runner.STARTS), "help": "how a step's process begins"}] = "auto",
    out: Path | None = None,
) -> Iterator[Result]:
    """Run the steps and the parts of the benchmarks in the order of what is learnt; yield one page at the end."""
    options, about = runner.begin(device, start, out, quick, resume, retry, None)
    end = time.monotonic() + limit
    bench = Bench(NAME, options, end, about)
    _run(bench, BEFORE)
    pages = [_part(options, about, runner.PROBE, min(_PROBE_S, end - time.monotonic()))]
    _run(bench, (*CHECKS, *TESTS))
    parts = list(runner.PARTS)
    for index, name in enumerate(parts):
        pages.append(_part(options, about, name, runner.share_s(parts[index:], end - time.monotonic())))
    left = bench.skipped + [row[0] for row in pages if row[1] != "ok"]
    bench.save(complete=not bench.skipped)
    notes = [f"not run, or not whole: {', '.join(left)}; --resume runs it"] if left else []
    yield Result("", None, [page(bench.cells, pages)], notes, exit_code=3 if left or not _good(bench.cells) else 0)


def _run(bench: Bench, steps: tuple[Step, ...]) -> None:
    for step in steps:
        if not step.gpu or bench.options.device != "cpu":
            bench.run(step.key, _CALLS + step.call, step.limit_s, memfit=True, **step.request)


def _part(options: Options, about: Row, name: str, seconds: float) -> list[str]:
    """Run a part of the benchmarks, whose results are in its own file; return its line of the page."""
    began = time.monotonic()
    result = runner.run_part(name, options, about, max(seconds, 0.0))
    cells = read(options.out / f"{name}.json").get("cells", {})
    said = f"{len(measured(cells))} of {len(cells)} cells have a result"
    return [name, "ok" if result.exit_code == 0 else "not whole", f"{time.monotonic() - began:.0f}", said]


def _good(cells: dict[str, Outcome]) -> bool:
    """Whether every step that ran has a result, and none of them wrong bits or too many bytes."""
    rows = measured(cells)
    return len(rows) == len(cells) and all(row.get("same_bits", True) and _held(row) for row in rows.values())


def _held(found: Row) -> bool:
    return bool(found.get("peak_footprint_bytes", 0) <= found.get("budget_bytes", 0))


def page(cells: dict[str, Outcome], parts: list[list[str]]) -> Table:
    """Return the page: a line for each step in the order in which they ran."""
    lines = [_line(step, cells[step.key]) for step in (*BEFORE, *CHECKS, *TESTS) if step.key in cells]
    probed = len(BEFORE)  # the probe comes after these
    rows = lines[:probed] + parts[:1] + lines[probed:] + parts[1:]
    return Table("The first minutes", ["step", "outcome", "seconds", "found"], rows)


def _line(step: Step, cell: Outcome) -> list[str]:
    said = step.line(cell["result"]) if cell["status"] == "ok" else cell.get("error", "")
    return [step.key, cell["status"], f"{cell.get('seconds', 0.0):.0f}", said[:_SAID]]
