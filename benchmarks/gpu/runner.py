"""Training on a GPU inside budgets, against the plain run and other ways to save memory: which parts, how long."""

from __future__ import annotations

import importlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from benchmarks.common.paths import RESULTS
from benchmarks.common.result import Result, Row, Table
from benchmarks.gpu.bench import Bench, Options, read
from benchmarks.gpu.cells import run_cell

# The parts, the most valuable first; the share that each has of the time it and those after it have together.
PARTS = {"sweep": 0.38, "overhead": 0.15, "peers": 0.24, "largest": 0.13, "mapped": 0.10}
PROBE = "probe"  # a part that runs by itself
_DEVICE_LIMIT_S, _ENGINE_LIMIT_S = 60.0, 240.0
_HEAVY = ("torch", "numpy", "memfit.running.session", "torch._dynamo", "transformers")
STARTS = {"auto": ("fork", "spawn"), "fork": ("fork",), "spawn": ("spawn",)}


def run(
    *,
    device: Annotated[str, {"help": "cuda, cuda:N, or cpu to try the programs out (with --quick)"}] = "cuda",
    quick: Annotated[bool, {"help": "tiny models: whether it runs, not how fast"}] = False,
    resume: Annotated[bool, {"help": "keep the results there are, and run the cells that are missing"}] = False,
    retry: Annotated[bool, {"help": "with --resume: run cells that failed again"}] = False,
    limit: Annotated[float, {"help": "seconds for all parts, once the engine is built"}] = 470.0,
    start: Annotated[str, {"choices": list(STARTS), "help": "how a cell's process begins"}] = "auto",
    only: Annotated[Sequence[str], {"choices": [*PARTS, PROBE], "help": "parts"}] = tuple(PARTS),
    models: Annotated[Sequence[str] | None, {"help": "instead of each part's own"}] = None,
    tables: Annotated[bool, {"help": "print the tables of the results in --out; run nothing"}] = False,
    out: Path | None = None,
) -> Iterator[Result]:
    """Run the parts into `out`, or a folder of the device's name; fails when cells are missing, but not if cells do."""
    parts = [name for name in (*PARTS, PROBE) if name in only]
    if tables:
        if out is None:
            raise SystemExit("--tables needs --out FOLDER")
        yield from (shown(name, read(out / f"{name}.json").get("cells", {})) for name in parts)
        return
    options, about = begin(device, start, out, quick, resume, retry, models)
    end = time.monotonic() + limit
    for index, name in enumerate(parts):
        yield run_part(name, options, about, share_s(parts[index:], end - time.monotonic()))


def begin(
    device: str, start: str, out: Path | None, quick: bool, resume: bool, retry: bool, models: Sequence[str] | None
) -> tuple[Options, Row]:
    """Build the engine and return how cells run, and what the device, the software and the engine are."""
    import_heavy()
    facts, how = look(device, start)
    engine, error = build_engine(device, how)
    folder = (out or RESULTS / folder_name(facts["name"])).resolve()
    options = Options(folder, device, quick, resume or retry, retry, how, tuple(models) if models else None,
                      engine_error=error)  # fmt: skip
    print(f"{facts['name']}, torch {facts['torch']}: results in {folder}, processes by {how}")
    return options, {"device": facts, "engine": engine, "engine_error": error}


def share_s(parts: Sequence[str], left_s: float) -> float:
    """Return the seconds that the first part may take of those left: what one does not use goes to the next."""
    shares = [PARTS.get(name, 1.0) for name in parts]
    return left_s * shares[0] / sum(shares)


def import_heavy() -> None:
    """Import here, once, what every cell needs. None of it touches the GPU, or a forked process could not use it."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in _HEAVY:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"  {name} cannot be imported: {type(error).__name__}: {error}")


def look(device: str, start: str) -> tuple[Row, str]:
    """Return what the device is, and how cells start: forked, unless that keeps them from using the device."""
    for how in STARTS[start]:
        outcome = run_cell({"call": "benchmarks.gpu.accelerator:describe", "device": device}, _DEVICE_LIMIT_S, how)
        if outcome["status"] == "ok":
            return outcome["result"], how
        print(f"  {device} cannot be used by a process started by {how}: {outcome['error']}")
    raise SystemExit(f"{device} cannot be used; {outcome.get('log', '')[-1500:]}")


def build_engine(device: str, how: str) -> tuple[Row | None, str]:
    """Build memfit's engine where it has not been; return what it is, and why there is none ("" if there is)."""
    built = run_cell({"call": "benchmarks.gpu.accelerator:build_engine", "device": device}, _ENGINE_LIMIT_S, how)
    print(f"  engine: {built['status']} in {built['seconds']:.1f} s {built.get('error', '')}")
    return built.get("result"), "" if built["status"] == "ok" else f"no engine: {built['error']}"


def run_part(name: str, options: Options, about: Row, seconds: float) -> Result:
    """Run one part within so many seconds; return its tables."""
    module = importlib.import_module(f"benchmarks.gpu.{name}")
    bench = Bench(name, options, time.monotonic() + seconds, about)
    print(f"{name}: at most {seconds:.0f} s")
    try:
        module.measure(bench)
    except Exception as error:  # a part's own mistake: what it has measured stays, and the other parts run
        bench.about = about | {"part_error": f"{type(error).__name__}: {error}"}
        bench.skipped.append(f"the rest of the part, which ended with {type(error).__name__}: {error}")
    bench.save(complete=not bench.skipped)
    return shown(name, bench.cells, bench.skipped)


def shown(name: str, cells: Row, skipped: Sequence[str] = ()) -> Result:
    """Return a part's tables, and what failed or is missing. Its file is written already."""
    found: list[Table] = importlib.import_module(f"benchmarks.gpu.{name}").tables(cells)
    failed = [[key, c["status"], c.get("error", "")[:160]] for key, c in cells.items() if c["status"] != "ok"]
    if failed:
        found.append(Table("Without a result", ["cell", "status", "why"], failed))
    notes = [f"{name}: not run: {', '.join(skipped)}; --resume runs it"] if skipped else []
    return Result("", None, found, notes, exit_code=3 if skipped else 0)


def folder_name(device: str) -> str:
    """Return a device's short name for its folder: "NVIDIA H200" is h200."""
    words = (word for word in device.lower().split() if word not in ("nvidia", "amd", "tesla", "geforce"))
    return "-".join(re.sub(r"[^\w-]", "-", word) for word in words) or "unknown"
