"""The first to run on a GPU: what its link and memory do, and whether memfit's ways hold there. Under two minutes."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from benchmarks.common.result import Row, Table, gib
from benchmarks.gpu import runner
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.probe_link import WAYS

_ENGINE, _LINK = "benchmarks.gpu.probe_engine:", "benchmarks.gpu.probe_link:"
# Key, function, whether it needs memfit. What memfit stands on comes first, then what its plans need.
CELLS = (
    ("guard", f"{_ENGINE}guard", True),
    ("allocator", f"{_ENGINE}allocator", True),
    ("coverage", f"{_ENGINE}coverage", True),
    ("link", f"{_LINK}link", False),
    ("both ways", f"{_LINK}both_ways", False),
    ("under a product", f"{_LINK}under_product", False),
    ("pinned", f"{_LINK}pinned", False),
    ("op cost", f"{_ENGINE}op_cost", True),
    ("inside", f"{_LINK}inside", False),
)
_CELL_S = 25.0

run = functools.partial(runner.run, only=(runner.PROBE,), limit=110.0)


def measure(bench: Bench) -> None:
    """Run the cells; on a CPU those that need no GPU."""
    for key, call, memfit in CELLS:
        if memfit or bench.options.device != "cpu":
            bench.run(key, call, _CELL_S, memfit=memfit)


def tables(cells: Row) -> list[Table]:
    """Return the tables of what there is."""
    done = measured(cells)
    makers = {"link": _link, "under a product": _product, "both ways": _both, "pinned": _pinned, "inside": _inside,
              "coverage": _coverage, "guard": _facts, "allocator": _facts, "op cost": _facts}  # fmt: skip
    return [make(key, done[key]) for key, make in makers.items() if key in done]


def _digits(row: Row, names: Iterable[str], digits: int = 1) -> list[str]:
    return [f"{row[name]:.{digits}f}" if name in row else "-" for name in names]


def _link(_: str, found: Row) -> Table:
    rows = [[f"{out['size_bytes']:,}", *_digits(out, ("one_us", "gb_per_s")), *_digits(into, ("one_us", "gb_per_s"))]
            for out, into in zip(found["out"], found["in"], strict=True)]  # fmt: skip
    return Table("The link, alone", ["bytes", "out: one, us", "GB/s", "in: one, us", "GB/s"], rows)


def _both(_: str, found: Row) -> Table:
    row = _digits(found, (f"{way}_gb_per_s" for way in WAYS))
    return Table("Both ways at once", ["out GB/s", "in GB/s"], [row])


def _product(_: str, found: Row) -> Table:
    rows = [[ways, *_digits(found[ways]["gb_per_s"], WAYS), f"{found[ways]['product_slowdown']:.3f}x"]
            for ways in ("out", "in", "out+in") if ways in found]  # fmt: skip
    title = f"Beside products of {found['side']} x {found['side']} at {found['tflop_per_s']:.0f} TFLOP/s"
    return Table(title, ["copies", "out GB/s", "in GB/s", "product's time"], rows)


def _pinned(_: str, found: Row) -> Table:
    names = ("torch_first_ms", "torch_again_ms", "register_fresh_ms", "register_touched_ms", "unregister_ms")
    rows = [[gib(row["size_bytes"]), *_digits(row, names, 2)] for row in found["sizes"]]
    return Table("Pinned host memory, ms", ["GiB", *(name[:-3].replace("_", " ") for name in names)], rows)


def _inside(_: str, found: Row) -> Table:
    rows = [[gib(row["size_bytes"]), f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}"] for row in found["sizes"]]
    return Table("Copies within the GPU", ["GiB", "us", "GB/s copied"], rows)


def _coverage(_: str, found: Row) -> Table:
    rows = []
    for name, each in found["optimizers"].items():
        if "error" in each:
            rows.append([name, each["error"][:120], "", "", "", ""])
            continue
        missed = ", ".join(f"{op} x{count}" for op, count in each["only_profiled"].items())
        phases = ", ".join(f"{phase}: {count}" for phase, count in each["phases"].items())
        rows.append([name, *(str(each[k]) for k in ("seen", "profiled", "dispatched")), phases, missed or "none"])
    columns = ["optimizer", "seen by the engine", "by the profiler", "by a dispatch mode", "phases", "not seen"]
    return Table("Ops of one iteration", columns, rows)


def _facts(key: str, found: Row) -> Table:
    return Table(key, ["what", "found"], [[name, str(value)[:150]] for name, value in found.items()])
