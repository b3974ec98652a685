"""Other ways to spend less memory, and memfit at the same peak as each: memory and time side by side.

The peak that memfit is given is what the peer's tensors took at most (`max_memory_allocated`); the memory that the peer
takes from the driver is larger, and stands beside it.
"""

from __future__ import annotations

from benchmarks.common.result import Row, Table, gib
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.models import SPECS
from benchmarks.gpu.sweep import bits, held, remark, run_limited, run_plain
from benchmarks.gpu.training import MODES

MODELS = ("llama", "vgg16", "gpt2_medium", "resnet50")
ROUNDS = (("plain", "save_on_cpu", "checkpoint", "selective", "expandable"), ("compile",), ("compile_whole",))
_LIMIT_S = {"compile": 90.0, "compile_whole": 150.0}  # of other modes 60
_ALIKE = 0.02  # of a budget: memfit is not run again for a peak so near another
COLUMNS = ["model", "way", "peak GiB", "driver GiB", "step ms", "of plain", "memfit at that peak", "driver GiB", "held",
           "of plain", "peer / memfit", "bits of memfit", "remark"]  # fmt: skip


def twin(name: str, model: str, peak_bytes: int, cells: Row) -> str:
    """Return the key of memfit's run at the peak: one there already, if its budget is about the same."""
    for key, cell in cells.items():
        budget = (cell.get("result") or {}).get("budget_bytes")
        if key.startswith(f"{model}/memfit@") and budget and abs(budget / peak_bytes - 1) < _ALIKE:
            return key
    return f"{model}/memfit@{name}"


def measure(bench: Bench) -> None:
    """Run the cells, the cheap and telling ones of all models first; some modes alone go by the sweep's plain runs."""
    found_before = bench.read("sweep")
    swept, rounds = measured(found_before), ROUNDS if bench.options.modes is None else (bench.options.modes,)
    if bench.options.modes is not None:
        plain = {key: cell for key, cell in found_before.items() if key.endswith("/plain") and cell["status"] == "ok"}
        bench.cells = plain | bench.cells
    for modes in rounds:
        for model in bench.options.models or MODELS:
            # At the batch that the sweep trained the model at: the two parts' figures belong together.
            batch = swept.get(f"{model}/plain", {}).get("batch")
            for mode in modes:
                found = run_plain(bench, model, mode, batch, _LIMIT_S.get(mode, 60.0))
                if found is not None:
                    batch, peak = batch or found["batch"], found["peak_bytes"]
                    run_limited(bench, twin(mode, model, peak, bench.cells), model, found, peak)


def row(model: str, mode: str, plain: Row, peer: Row, ours: Row | None) -> list[str]:
    """Return one line: the other way, and memfit at its peak."""
    whole = plain["median_ms"]["step"]
    own = held({**peer, "budget_bytes": 0})[0]
    step = peer["median_ms"]["step"]
    cells = [model, MODES[mode], gib(peer["peak_bytes"]), gib(own), f"{step:.1f}", f"{step / whole:.3f}x"]
    if ours is None or not ours.get("median_ms"):
        return [*cells, "-", "-", "-", "-", "-", "-", remark(ours) if ours else "not run"]
    driver, holds = held(ours)
    time = ours["median_ms"]["step"]
    return [*cells, f"{time:.1f} ms", gib(driver), holds, f"{time / whole:.3f}x", f"{step / time:.2f}",
            bits(plain, ours), remark(ours)]  # fmt: skip


def tables(cells: Row) -> list[Table]:
    """Return the tables of what there is."""
    done = measured(cells)
    rows = []
    for model in SPECS:
        for mode in MODES:
            plain, peer = done.get(f"{model}/plain"), done.get(f"{model}/{mode}")
            if plain and peer:
                rows.append(row(model, mode, plain, peer, done.get(twin(mode, model, peer["peak_bytes"], cells))))
    return [Table("Other ways, and memfit at the peak of each", COLUMNS, rows)] if rows else []
