"""Packing: footprints and seconds of memfit and of omnimalloc on the same lifetimes, in the same run.

Reads the data folder (../shared/data beside the project, or MEMFIT_DATA); without omnimalloc its columns are empty.
Seconds are of the wall clock, then of the processor; "last" is when our last better plan was found, "level" when we
had one no larger than the smaller of omnimalloc's two. `--only NAME` runs the files whose name contains NAME;
`--no-scale` leaves out the generated traces; `--traces FILE...` adds traces that memfit recorded.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, save, show

from memfit.files import load_trace
from memfit.planning.packing import Lifetimes, Packing, lifetimes_of, pack, repeat

DATA = Path(os.environ.get("MEMFIT_DATA", ROOT.parent / "shared" / "data"))
EFFORT = 3.0
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


def timed(call: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result, and what it took: seconds of the wall clock, and of all threads on a core."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def ours(lifetimes: Lifetimes, **options: Any) -> dict[str, Any]:
    packing: Packing
    told: list[tuple[float, int]] = []
    packing, took = timed(lambda: pack(lifetimes, progress=lambda *plan: told.append(plan), **options))
    return took | {
        "footprint": packing.footprint,
        "gap": packing.footprint / packing.peak_live - 1,
        "search_seconds": packing.seconds,  # without the validation
        "first_seconds": told[0][0],
        "last_seconds": told[-1][0],
        "plans": told,  # seconds and bytes of each better one
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
    placed, took = timed(lambda: omnimalloc.allocate(rows, allocator))
    return took | {"footprint": max(row.offset + row.size for row in placed)}


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
    result |= {kind: theirs(lifetimes, kind) if others else None for kind in ("supermalloc", "omni")}
    result["level_seconds"] = level_seconds(result)
    return result


def level_seconds(result: dict[str, Any]) -> float | None:
    """Return when our search had a plan no larger than the smaller one of omnimalloc; None if never, or no other."""
    smallest = min((result[kind]["footprint"] for kind in ("supermalloc", "omni") if result[kind]), default=0)
    return next((seconds for seconds, footprint in result["ours"]["plans"] if footprint <= smallest), None)


def files(only: str) -> Iterator[tuple[str, Lifetimes]]:
    for path in sorted([*(DATA / "packing").glob("*.csv"), *(DATA / "snapshots").glob("*.csv")]):
        if only in path.name:
            yield path.name.removesuffix(".csv").removesuffix(".cap1048576"), read_lifetimes(path)


def traces(paths: list[Path]) -> Iterator[tuple[str, Lifetimes]]:
    for path in paths:
        yield path.name.split(".")[0], lifetimes_of(load_trace(path))


def table_row(result: dict[str, Any]) -> list[str]:
    searched, level = result["ours"], result["level_seconds"]
    when = [f"{searched['last_seconds']:.3f}", "" if level is None else f"{level:.3f}"]
    cells = {kind: cell(result[kind], result["peak_live"]) for kind in ("greedy", "ours", "supermalloc", "omni")}
    return [
        *(result["name"], f"{result['lifetimes']:,}", f"{searched['footprint']:,}"),
        *(*cells["greedy"], *cells["ours"], *when, *cells["supermalloc"], *cells["omni"]),
    ]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-scale", action="store_true")
    parser.add_argument("--traces", nargs="*", type=Path, default=[], metavar="FILE")
    arguments = parser.parse_args()
    tables = [*files(arguments.only), *traces(arguments.traces)]
    results = [compare(name, lifetimes) for name, lifetimes in tables]
    if not arguments.no_scale:
        for count in (62_000, 100_000, 1_000_000):
            results.append(compare(f"generated {count:,}", generate(count), others=False))
    columns = ["lifetimes of", "n", "bytes", "greedy", "s", "cpu", f"ours {EFFORT:g} s", "s", "cpu", "last", "level"]
    columns += ["supermalloc", "s", "cpu", "omni", "s", "cpu"]
    show("Footprint over peak live; * is proven smallest", columns, [table_row(result) for result in results])
    hard = challenging_d() if arguments.only in "challenging_D" else []
    show(
        "challenging_D",
        ["asked for", "bytes", "s", "cpu"],
        [[r["asked"], f"{r['footprint']:,}", f"{r['seconds']:.3f}", f"{r['cpu_seconds']:.3f}"] for r in hard],
    )
    rows = nets()
    show(
        "SmartPool's nets in circular time",
        ["net", "iterations", "bytes with what lives always", "over busy peak", "over peak live"],
        [
            [
                row["name"],
                row["iterations"],
                f"{row['footprint'] + row['always']:,}",
                f"{(row['footprint'] + row['always']) / row['busy_peak']:.6f}",
                f"{row['over_live']:.6f}",
            ]
            for row in rows
        ],
    )
    save("packing", {"effort": EFFORT, "files": results, "challenging_D": hard, "nets": rows})


if __name__ == "__main__":
    main()
