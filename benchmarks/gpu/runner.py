"""Training on a GPU inside budgets, against the plain run and other ways to save memory: which parts, how long."""

from __future__ import annotations

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.common.paths import RESULTS
from benchmarks.common.result import Table, show
from benchmarks.gpu.bench import Bench, Options
from benchmarks.gpu.cells import run_cell
from benchmarks.gpu.store import Results, folder_name, read

LIMIT_S = 470.0
_DEVICE_LIMIT_S = 60.0
_ENGINE_LIMIT_S = 240.0
_HEAVY = ("torch", "numpy", "memfit.running.session", "torch._dynamo", "transformers", "torchvision.models")


@dataclass(frozen=True)
class Part:
    """`share` is of the time that this part and those after it have together, if all run."""

    name: str
    module: str
    share: float


# The most valuable first.
PARTS = (
    Part("sweep", "benchmarks.gpu.sweep", 0.42),
    Part("overhead", "benchmarks.gpu.overhead", 0.17),
    Part("peers", "benchmarks.gpu.peers", 0.26),
    Part("largest", "benchmarks.gpu.largest", 0.15),
)
PROBE = Part("probe", "benchmarks.gpu.probe", 1.0)


def parser(limit_s: float = LIMIT_S) -> argparse.ArgumentParser:
    """Return the options that the runner and the probe have in common."""
    made = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    made.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to try the programs out (with --quick)")
    made.add_argument("--quick", action="store_true", help="tiny models: whether it runs, not how fast")
    made.add_argument(
        "--resume", action="store_true", help="keep the results there are, and run the cells that are missing"
    )
    made.add_argument("--retry", action="store_true", help="with --resume: run cells that failed again")
    made.add_argument("--out", type=Path, help="folder for the JSON; else benchmarks/results/DEVICE")
    made.add_argument("--limit", type=float, default=limit_s, help="seconds for everything (%(default).0f)")
    made.add_argument("--start", choices=("auto", "fork", "spawn"), default="auto", help="how a cell's process begins")
    return made


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the runner's command line."""
    made = parser()
    made.add_argument("--only", type=_names, help="parts, with commas: " + ",".join(part.name for part in PARTS))
    made.add_argument(
        "--models", type=lambda text: tuple(text.split(",")), help="models, with commas; else each part's own"
    )
    made.add_argument("--tables", action="store_true", help="print the tables of the results there are; run nothing")
    args = made.parse_args(argv)
    if args.tables and not args.out:
        made.error("--tables needs --out FOLDER")
    return args


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = set(names) - {part.name for part in PARTS}
    if unknown:
        raise argparse.ArgumentTypeError(f"no part is called {', '.join(sorted(unknown))}")
    return names


def chosen(only: Sequence[str] | None) -> list[Part]:
    """Return the parts to run, in order."""
    return [part for part in PARTS if only is None or part.name in only]


def share_s(parts: Sequence[Part], index: int, left_s: float) -> float:
    """Return the seconds that part `index` may take of those left: what one does not use goes to the next."""
    return left_s * parts[index].share / sum(part.share for part in parts[index:])


def import_heavy() -> None:
    """Import here, once, what every cell needs. None of it touches the GPU, or a forked process could not use it."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _HEAVY:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"  {name} cannot be imported: {type(error).__name__}: {error}")


def look(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """Return what the device is, and how cells start: forked, unless that keeps them from using the device."""
    starts = ("fork", "spawn") if args.start == "auto" else (args.start,)
    request = {"call": "benchmarks.gpu.accelerator:describe", "device": args.device}
    for start in starts:
        outcome = run_cell(request, _DEVICE_LIMIT_S, start)
        if outcome["status"] == "ok":
            return outcome["result"], start
        print(f"  {args.device} cannot be used by a process started by {start}: {outcome['error']}")
    raise SystemExit(f"{args.device} cannot be used; {outcome.get('log', '')[-1500:]}")


def engine(args: argparse.Namespace, start: str) -> dict[str, Any]:
    """Build memfit's engine, where it has not been; returns the cell's outcome."""
    outcome = run_cell(
        {"call": "benchmarks.gpu.accelerator:build_engine", "device": args.device}, _ENGINE_LIMIT_S, start
    )
    print(f"  engine: {outcome['status']} in {outcome['seconds']:.1f} s {outcome.get('error', '')}")
    return outcome


def prepared(args: argparse.Namespace) -> tuple[Options, dict[str, Any]]:
    """Return the options of all parts, and what results say they are about."""
    import_heavy()
    device, start = look(args)
    built = engine(args, start)
    error = "" if built["status"] == "ok" else f"no engine: {built['error']}"
    out = args.out or RESULTS / folder_name(device["name"])
    options = Options(out.resolve(), args.device, args.quick, args.resume or args.retry, args.retry, start,
                      getattr(args, "models", None), error)  # fmt: skip
    print(f"{device['name']}, torch {device['torch']}: results in {options.out}, processes by {start}")
    return options, {"device": device, "engine": built.get("result"), "engine_error": error}


def run_part(part: Part, options: Options, about: dict[str, Any], seconds: float) -> bool:
    """Run one part within so many seconds and print its tables; False if cells are missing."""
    module = importlib.import_module(part.module)
    results = Results(options.out / f"{part.name}.json", options.settings, options.resume)
    results.about, results.complete = about, False
    bench = Bench(results, options, time.monotonic() + seconds)
    print(f"{part.name}: at most {seconds:.0f} s")
    try:
        module.measure(bench)
    except Exception as error:  # a part's own mistake: what it has measured stays, and the other parts run
        results.about = about | {"part_error": f"{type(error).__name__}: {error}"}
        bench.skipped.append("the rest of the part")
        print(f"  {part.name} ended early: {type(error).__name__}: {error}")
    bench.finish()
    tell(module, results.cells)
    if bench.skipped:
        print(f"{part.name}: no time for {', '.join(bench.skipped)}; --resume runs them")
    return results.complete


def tell(module: ModuleType, cells: dict[str, Any]) -> None:
    """Print a part's tables, and what failed."""
    for table in module.tables(cells):
        show(table)
    failed = [
        [key, cell["status"], cell.get("error", "")[:160]] for key, cell in cells.items() if cell["status"] != "ok"
    ]
    if failed:
        show(Table("Without a result", ["cell", "status", "why"], failed))


def tables(folder: Path, parts: Sequence[Part]) -> None:
    """Print the tables of a folder's results."""
    for part in parts:
        data = read(folder / f"{part.name}.json")
        if data is not None:
            tell(importlib.import_module(part.module), data["cells"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts; 0 when no cell is missing (a cell that failed is there, with its error)."""
    started = time.monotonic()
    args = arguments(argv)
    parts = chosen(args.only)
    if args.tables:
        tables(args.out, parts)
        return 0
    options, about = prepared(args)
    whole = []
    for index, part in enumerate(parts):
        left = args.limit - (time.monotonic() - started)
        whole.append(run_part(part, options, about, share_s(parts, index, left)))
    print(f"{sum(whole)} of {len(parts)} parts are complete, after {time.monotonic() - started:.0f} s")
    return 0 if all(whole) else 3


def main_of_probe(argv: Sequence[str] | None, limit_s: float) -> int:
    """Run the probe alone, with the same options. The building of the engine, once, is not counted in its limit."""
    args = parser(limit_s).parse_args(argv)
    options, about = prepared(args)
    return 0 if run_part(PROBE, options, about, args.limit) else 3
