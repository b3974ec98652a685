"""Packing: footprints and seconds of memfit and of omnimalloc on the same lifetimes, in the same run.

Reads the data folder (../shared/data beside the project, or MEMFIT_DATA) and records the examples; without omnimalloc
its columns are empty. Seconds are of the wall clock, the median of several runs of what is quick, then of the
processor; "last" is when our last better plan was found. "level" is how long we took to a plan no larger than theirs,
and "all" how long in all, each over their time. `--only NAME` runs the files whose name contains NAME;
`--no-scale` leaves out the generated traces.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import DATA, add_traces_option, example_traces, lifetime_files, save, show

from memfit.files import load_trace
from memfit.planning.packing import Lifetimes, Packing, lifetimes_of, pack, repeat

EFFORT = 3.0
RUNS, RUNS_SECONDS = 7, 2.0  # how often what is quick is run again, and for how long at most
OTHERS = ("supermalloc", "omni")
THREADS = 6  # what omnimalloc's search needs to find what it can
# Recorded from process start; where the iteration begins, and its events.
NETS = {"alexnet": (201, 188), "vgg": (2245, 1020)}


def read_lifetimes(path: Path) -> Lifetimes:
    table = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(1, 2, 3), dtype=np.int64)
    return Lifetimes(*(np.ascontiguousarray(column) for column in table.T))


def read_net(name: str) -> tuple[Lifetimes, int, int]:
    """Return the lifetimes allocated in one iteration, its period, and the bytes that live throughout."""
    start, period = NETS[name]
    live: dict[str, tuple[int, int]] = {}
    rows, always = [], 0
    lines = (DATA / "paper" / f"cifar10_{name}_b100_mallocs.csv").read_text().split()[1:]
    for index, line in enumerate(lines):
        action, address, size = line.split(",")
        if action == "malloc":
            live[address] = (index, int(size))
            continue
        born, size_bytes = live.pop(address)
        if start <= born < start + period:
            rows.append((born - start, index - start, size_bytes))
        elif born < start and index >= start + period:
            always += size_bytes
    always += sum(size for born, size in live.values() if born < start)
    return Lifetimes.from_rows(rows), period, always


def generate(count: int, seed: int = 0) -> Lifetimes:
    """Return a synthetic training step: parameters for good, activations first in last out, scratch, gradients.

    Sizes are of a few dozen distinct shapes, as layers repeat; one in six storages lives long.
    """
    random = np.random.default_rng(seed)
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


def timed(call: Callable[[], Any]) -> tuple[list[Any], dict[str, float]]:
    """Return the results of several runs, and what the median one took: seconds of the wall clock, and of all threads.

    What is slow runs once.
    """
    results: list[Any] = []
    took: list[tuple[float, float]] = []
    begin = time.perf_counter()
    while not took or len(took) < RUNS and time.perf_counter() - begin < RUNS_SECONDS:
        wall, cpu = time.perf_counter(), time.process_time()
        results.append(call())
        took.append((time.perf_counter() - wall, time.process_time() - cpu))
    seconds, cpu_seconds = sorted(took)[len(took) // 2]
    return results, {"seconds": seconds, "cpu_seconds": cpu_seconds}


def told_pack(lifetimes: Lifetimes, **options: Any) -> tuple[Packing, list[tuple[float, int]]]:
    """Return the packing, and seconds and bytes of each better plan."""
    told: list[tuple[float, int]] = []
    return pack(lifetimes, progress=lambda *better: told.append(better), **options), told


def ours(lifetimes: Lifetimes, **options: Any) -> dict[str, Any]:
    runs, took = timed(lambda: told_pack(lifetimes, **options))
    packing, _ = runs[0]
    search_seconds = statistics.median(packing.seconds for packing, _ in runs)
    # A search that had ended at a plan would have read the table and checked the plan all the same.
    around = took["seconds"] - search_seconds
    # The plans are the same in every run, unless the clock ended one: what is slow, and runs once.
    plans = [
        (statistics.median(seconds for seconds, _ in each) + around, each[0][1])
        for each in zip(*(told for _, told in runs), strict=True)
    ]
    return took | {
        "footprint": packing.footprint,
        "gap": packing.footprint / packing.peak_live - 1,
        "search_seconds": search_seconds,
        "first_seconds": plans[0][0],
        "last_seconds": plans[-1][0],
        "plans": plans,
        "proven": packing.proven,
        "method": packing.method,
        "clock_stopped": packing.clock_stopped,
    }


def greedy(lifetimes: Lifetimes, **options: Any) -> dict[str, Any]:
    """The first plan alone."""
    return ours(lifetimes, effort=0.0, **options)


def theirs(lifetimes: Lifetimes, name: str) -> dict[str, Any] | None:
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
    runs, took = timed(lambda: omnimalloc.allocate(rows, allocator))
    return took | {"footprint": min(max(row.offset + row.size for row in placed) for placed in runs)}


def cell(result: dict[str, Any] | None, bound: int) -> list[str]:
    if result is None:
        return ["", "", ""]
    mark = "*" if result.get("proven") else ""
    gap = result["footprint"] / bound - 1
    return [f"{100 * gap:.4f}%{mark}", f"{result['seconds']:.3f}", f"{result['cpu_seconds']:.3f}"]


def compare(name: str, lifetimes: Lifetimes, *, others: bool = True, effort: float = EFFORT) -> dict[str, Any]:
    searched = ours(lifetimes, alignment=1, effort=effort)
    bound = round(searched["footprint"] / (1 + searched["gap"]))
    result = {"name": name, "lifetimes": len(lifetimes), "peak_live": bound}
    result |= {"greedy": greedy(lifetimes, alignment=1), "ours": searched}
    for kind in OTHERS:
        result[kind] = theirs(lifetimes, kind) if others else None
        if result[kind]:
            result[kind] |= ratios(searched, result[kind])
    return result


def ratios(searched: dict[str, Any], other: dict[str, Any]) -> dict[str, float | None]:
    """Return our seconds over theirs: to a plan no larger than theirs (None if there was none), and in all."""
    plans = searched["plans"]
    level = next((seconds for seconds, footprint in plans if footprint <= other["footprint"]), None)
    return {
        "level_seconds": level,
        "level_ratio": None if level is None else level / other["seconds"],
        "all_ratio": searched["seconds"] / other["seconds"],
    }


def tables(only: str, traces: list[Path]) -> Iterator[tuple[str, Lifetimes]]:
    for path in lifetime_files():
        if only in path.name:
            yield path.name.removesuffix(".csv").removesuffix(".cap1048576"), read_lifetimes(path)
    for path in traces:
        yield path.name.split(".")[0], lifetimes_of(load_trace(path))


def ratio_cells(result: dict[str, Any] | None) -> list[str]:
    if result is None:
        return ["", ""]
    level = result["level_ratio"]
    return ["never" if level is None else f"{level:.3f}", f"{result['all_ratio']:.3f}"]


def table_row(result: dict[str, Any]) -> list[str]:
    searched, bound = result["ours"], result["peak_live"]
    row = [result["name"], f"{result['lifetimes']:,}", f"{searched['footprint']:,}"]
    row += [*cell(result["greedy"], bound), *cell(searched, bound), f"{searched['last_seconds']:.3f}"]
    for kind in OTHERS:
        row += [*cell(result[kind], bound), *ratio_cells(result[kind])]
    return row


def nets() -> list[dict[str, Any]]:
    """The nets of SmartPool, in circular time: one iteration, and two with instances placed on their own."""
    results = []
    for name in NETS:
        lifetimes, period, always = read_net(name)
        for times in (1, 2):
            found = ours(repeat(lifetimes, period, times), alignment=1, period=times * period, effort=EFFORT)
            peak = round(found["footprint"] / (1 + found["gap"]))
            results.append({"name": name, "iterations": times, "always": always, "busy_peak": peak + always} | found)
        live = min(row["busy_peak"] for row in results if row["name"] == name)
        for row in results[-2:]:
            row["over_live"] = (row["footprint"] + always) / live
    return results


def challenging_d() -> list[dict[str, Any]]:
    """The hardest file: within the capacity it comes with, and as low as ten seconds get."""
    lifetimes = read_lifetimes(DATA / "packing" / "challenging_D.cap1048576.csv")
    given = ours(lifetimes, alignment=1, capacity=1_048_576, effort=1.0)
    return [{"asked": "capacity 1,048,576"} | given, {"asked": "10 s"} | ours(lifetimes, alignment=1, effort=10.0)]


def show_packed(results: list[dict[str, Any]]) -> None:
    columns = ["lifetimes of", "n", "bytes", "greedy", "s", "cpu", f"ours {EFFORT:g} s", "s", "cpu", "last"]
    for kind in OTHERS:
        columns += [kind, "s", "cpu", "level", "all"]
    show("Footprint over peak live; * is proven smallest", columns, [table_row(result) for result in results])


def show_challenging_d(results: list[dict[str, Any]]) -> None:
    rows = [[r["asked"], f"{r['footprint']:,}", f"{r['seconds']:.3f}", f"{r['cpu_seconds']:.3f}"] for r in results]
    show("challenging_D", ["asked for", "bytes", "s", "cpu"], rows)


def show_nets(results: list[dict[str, Any]]) -> None:
    columns = ["net", "iterations", "bytes with what lives always", "over busy peak", "over peak live"]
    rows = []
    for row in results:
        whole = row["footprint"] + row["always"]
        over = [f"{whole / row['busy_peak']:.6f}", f"{row['over_live']:.6f}"]
        rows.append([row["name"], row["iterations"], f"{whole:,}", *over])
    show("SmartPool's nets in circular time", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-scale", action="store_true")
    add_traces_option(parser)
    arguments = parser.parse_args()
    with example_traces(arguments.traces) as traces:
        results = [compare(name, lifetimes) for name, lifetimes in tables(arguments.only, traces)]
    if not arguments.no_scale:
        for count in (62_000, 100_000, 1_000_000):
            results.append(compare(f"generated {count:,}", generate(count), others=False))
    show_packed(results)
    has_data = DATA.is_dir()
    hard = challenging_d() if has_data and arguments.only in "challenging_D" else []
    rows = nets() if has_data else []
    show_challenging_d(hard)
    show_nets(rows)
    save("packing", {"effort": EFFORT, "files": results, "challenging_D": hard, "nets": rows})


if __name__ == "__main__":
    main()
