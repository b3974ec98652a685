"""Packing: footprints and seconds of memfit and of omnimalloc on the same lifetimes, in the same run.

Reads the data folder (MEMFIT_DATA) and records the examples; without omnimalloc its columns are empty. Seconds are of
the wall clock, the median of several runs of what is quick; the file has those of the processor too, and when each
better plan of ours was found. A ratio to omnimalloc's time is of our time to a plan no larger than theirs, then of all
our time. `--only NAME` runs the files whose name contains NAME; `--no-scale` leaves out the generated traces.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.examples import Traces, example_traces
from benchmarks.common.paths import DATA, lifetime_files, paper_mallocs
from benchmarks.common.result import Result, Row, Table
from benchmarks.common.timing import Found
from memfit.files import load_lifetimes, load_paper_mallocs
from memfit.planning.packing import Lifetimes, Packing, pack, repeat

EFFORT = 3.0
RUNS, RUNS_SECONDS = 7, 2.0  # how often what is quick is run again, and for how long at most
OTHERS = ("supermalloc", "omni")
THREADS = 6  # what omnimalloc's search needs to find what it can
# Recorded from process start; where the iteration begins, and its events.
NETS = {"alexnet": (201, 188), "vgg": (2245, 1020)}


def read_lifetimes(path: Path) -> Lifetimes:
    """Return the table, or the trace's lifetimes, in `path`."""
    table = load_lifetimes(path)
    return Lifetimes(table.lower, table.upper, table.size)


def read_net(name: str) -> tuple[Lifetimes, int, int]:
    """Return the lifetimes allocated in one iteration, its period, and the bytes that live throughout."""
    start, period = NETS[name]
    whole = load_paper_mallocs(paper_mallocs(name))
    born, gone = whole.lower - 1, whole.upper - 1  # the numbers of the events
    always = int(whole.size[(born < start) & (gone >= start + period)].sum())
    rows = np.flatnonzero((born >= start) & (born < start + period))
    rows = rows[np.argsort(gone[rows])]  # as they are freed
    return Lifetimes(born[rows] - start, gone[rows] - start, whole.size[rows]), period, always


def generate(count: int) -> Lifetimes:
    """Return a synthetic training step: parameters for good, activations first in last out, scratch, gradients.

    Sizes are of a few dozen distinct shapes, as layers repeat; one in six storages lives long.
    """
    random = np.random.default_rng(0)
    shapes = np.unique((2 ** random.uniform(9, 24, 60)).astype(np.int64) // 4 * 4)
    size = random.choice(shapes, count)
    steps = 2 * count
    kind = random.choice(4, count, p=[0.02, 0.15, 0.03, 0.80])  # parameter, activation, gradient, scratch
    birth = random.integers(0, steps - 2, count)
    forward = random.integers(0, steps // 2, count)
    lower = np.choose(kind, [np.zeros(count, dtype=np.int64), forward, steps // 2 + forward, birth])
    scratch = birth + 1 + random.geometric(0.05, count)
    upper = np.choose(kind, [np.full(count, steps), steps - forward, np.full(count, steps), scratch])
    size = np.where(kind == 3, size // 16 + 4, size)
    return Lifetimes(lower, np.maximum(upper, lower + 1), size)


def repeated(call: Callable[[], Found]) -> tuple[list[Found], Row]:
    """Return the results of several runs, and the median one's seconds of the wall clock and of the processor.

    What is slow runs once.
    """
    results: list[Found] = []
    took: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while not took or len(took) < RUNS and time.perf_counter() - begin < RUNS_SECONDS:
        wall, cpu = time.perf_counter(), time.process_time()
        results.append(call())
        took.append((time.perf_counter() - wall, time.process_time() - cpu))
    seconds, cpu_seconds = sorted(took)[len(took) // 2]
    return results, {"seconds": seconds, "cpu_seconds": cpu_seconds}


def ours(lifetimes: Lifetimes, **options: Any) -> Row:
    """Pack with memfit, by `options` of `pack`; of `plans`, each better than the last, the seconds and bytes."""
    told: list[list[tuple[float, int]]] = []

    def packed() -> Packing:
        told.append([])
        return pack(lifetimes, alignment=1, progress=lambda *better: told[-1].append(better), **options)

    (packing, *again), took = repeated(packed)
    search_seconds = statistics.median(run.seconds for run in (packing, *again))
    # A search that had ended at a plan would have read the table and checked the plan all the same.
    around = took["seconds"] - search_seconds
    # The plans are the same in every run, unless the clock ended one: what is slow, and runs once.
    plans = [
        (statistics.median(seconds for seconds, _ in each) + around, each[0][1]) for each in zip(*told, strict=True)
    ]
    return {
        **took,
        "footprint": packing.footprint,
        "gap": packing.footprint / packing.peak_live - 1,
        "search_seconds": search_seconds,
        "first_seconds": plans[0][0],
        "last_seconds": plans[-1][0],
        "plans": plans,
        "proven": packing.proven,
        "method": packing.method,
    }


def theirs(lifetimes: Lifetimes, name: str, searched: Row) -> Row | None:
    """Pack with one of omnimalloc's allocators, if it is installed, to compare with what memfit found.

    The ratios are of our seconds to its own; `level_ratio` is None if no plan of ours was as small.
    """
    try:
        import omnimalloc
        from omnimalloc.allocators.omni import OmniAllocator
        from omnimalloc.allocators.supermalloc import SupermallocAllocator
    except ImportError:
        return None
    columns = (lifetimes.lower.tolist(), lifetimes.upper.tolist(), lifetimes.size.tolist())
    rows = [
        omnimalloc.Allocation(id=index, start=lower, end=upper, size=size)
        for index, (lower, upper, size) in enumerate(zip(*columns, strict=True))
        if size  # it takes none of no bytes
    ]
    allocator = SupermallocAllocator(num_threads=THREADS) if name == "supermalloc" else OmniAllocator()
    runs, took = repeated(lambda: omnimalloc.allocate(rows, allocator))
    footprint = min(max(row.offset + row.size for row in placed) for placed in runs)
    level = next((seconds for seconds, plan in searched["plans"] if plan <= footprint), None)
    return {
        **took,
        "footprint": footprint,
        "level_seconds": level,
        "level_ratio": None if level is None else level / took["seconds"],
        "all_ratio": searched["seconds"] / took["seconds"],
    }


def compare(name: str, lifetimes: Lifetimes, *, others: bool = True) -> Row:
    """Return one file's figures: memfit's, its first plan's, and omnimalloc's."""
    searched = ours(lifetimes, effort=EFFORT)
    result = {"name": name, "lifetimes": len(lifetimes), "peak_live": _peak_live(searched)}
    result |= {"greedy": ours(lifetimes, effort=0.0), "ours": searched}
    return result | {kind: theirs(lifetimes, kind, searched) if others else None for kind in OTHERS}


def _peak_live(packed: Row) -> int:
    bound: float = packed["footprint"] / (1 + packed["gap"])
    return round(bound)


def nets() -> list[Row]:
    """The nets of SmartPool, in circular time: one iteration, and two with instances placed on their own."""
    results: list[Row] = []
    for name in NETS:
        lifetimes, period, always = read_net(name)
        for times in (1, 2):
            found = ours(repeat(lifetimes, period, times), period=times * period, effort=EFFORT)
            busy_peak = _peak_live(found) + always
            results.append({"name": name, "iterations": times, "always": always, "busy_peak": busy_peak, **found})
        for row in results[-2:]:
            row["over_live"] = (row["footprint"] + always) / min(each["busy_peak"] for each in results[-2:])
    return results


def challenging_d() -> list[Row]:
    """The hardest file: within the capacity it comes with, and as low as ten seconds get."""
    lifetimes = read_lifetimes(DATA / "packing" / "challenging_D.cap1048576.csv")
    within = ours(lifetimes, capacity=1_048_576, effort=1.0)
    return [{"asked": "capacity 1,048,576", **within}, {"asked": "10 s", **ours(lifetimes, effort=10.0)}]


def table(figures: dict[str, Any]) -> Table:
    """Return one row a file: ours and omnimalloc's two, gaps over the peak of live bytes, seconds and their ratios."""
    lines = []
    for row in figures["files"]:
        results = [_cell(row[kind], row["peak_live"]) for kind in ("greedy", "ours", *OTHERS)]
        lines.append([row["name"], f"{row['lifetimes']:,}", *results, *(_ratio(row[kind]) for kind in OTHERS)])
    times = [f"time / {kind}'s" for kind in OTHERS]
    columns = ["lifetimes of", "n", "greedy alone", "memfit", *OTHERS, *times]
    return Table("Footprint over the peak of live bytes", columns, lines)


def _cell(result: Row | None, bound: int) -> str:
    if result is None:
        return ""
    proven = ", proven" if result.get("proven") else ""
    return f"{result['footprint'] / bound - 1:.4%} in {result['seconds']:.4f} s{proven}"


def _ratio(result: Row | None) -> str:
    if result is None:
        return ""
    level = result["level_ratio"]
    return f"{'never' if level is None else f'{level:.2f}'}, {result['all_ratio']:.2f}"


def challenging_d_table(results: list[Row]) -> Table:
    """Return one row a question."""
    rows = [[r["asked"], f"{r['footprint']:,}", f"{r['seconds']:.3f}", f"{r['cpu_seconds']:.3f}"] for r in results]
    return Table("challenging_D", ["asked for", "bytes", "s", "cpu"], rows)


def nets_table(results: list[Row]) -> Table:
    """Return one row a net and number of iterations."""
    rows = []
    for row in results:
        whole = row["footprint"] + row["always"]
        over = [f"{whole / row['busy_peak']:.6f}", f"{row['over_live']:.6f}"]
        rows.append([row["name"], row["iterations"], f"{whole:,}", *over])
    columns = ["net", "iterations", "bytes with what lives always", "over busy peak", "over peak live"]
    return Table("SmartPool's nets in circular time", columns, rows)


def run(*, only: str = "", no_scale: bool = False, traces: Traces = None) -> Iterator[Result]:
    """Pack each file, ours and theirs."""
    with example_traces(traces) as recorded:
        files = [path for path in lifetime_files() if only in path.name]
        results = [compare(path.name.split(".")[0], read_lifetimes(path)) for path in (*files, *recorded)]
    for count in () if no_scale else (62_000, 100_000, 1_000_000):
        results.append(compare(f"generated {count:,}", generate(count), others=False))
    has_data = DATA.is_dir()
    hard = challenging_d() if has_data and only in "challenging_D" else []
    rows = nets() if has_data else []
    figures = {"effort": EFFORT, "files": results, "challenging_D": hard, "nets": rows}
    yield Result("packing", figures, [table(figures), challenging_d_table(hard), nets_table(rows)])
