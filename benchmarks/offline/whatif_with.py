"""How well `memfit whatif --with` foresees peaks: its arithmetic beside recordings with each technique applied.

A technique is applied by the library that its row names. A row whose library is not installed says so:
pip install --no-deps bitsandbytes peft torch-pruning torchao; and scikit-learn, transformers, accelerate for peft.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

from benchmarks.common.compressing import APPLIED, MODELS, Training
from benchmarks.common.result import Result, Row, Table, mb
from memfit import record
from memfit.comparing.compression import compressed, parse_techniques
from memfit.ir import Trace
from memfit.planning.autoswap import smallest_budget
from memfit.simulate import load_bytes

BAR = 0.03
# Misses with a known reason.
KNOWN = {("mlp", "bf16"): "a kernel of the CPU for products of bfloat16 takes scratch (0.4 MB) that float32's does not"}

# The model that each technique is tried on, and how it is written.
CASES = (
    ("mlp", "8bit-adam"), ("gpt", "8bit-adam"), ("mlp", "lora:8"), ("gpt", "lora:8"), ("mlp", "bf16"), ("gpt", "bf16"),
    ("probe", "int8-frozen"), ("adapted", "int8-frozen"), ("mlp", "channels:50%"), ("cnn", "channels:50%"),
    ("mlp", "prune"), ("cnn", "prune"), ("mlp", "lowrank:32"), ("gpt", "lowrank:32"), ("mlp", "share:16"),
    ("mlp", "distil:64"), ("cnn", "distil:8"), ("gpt", "lora:8,8bit-adam"), ("gpt", "lowrank:32,8bit-adam"),
)  # fmt: skip


def peak_of(trace: Trace) -> int:
    """Return the most that an arena holds if nothing moves."""
    return int(load_bytes(trace).max())


def recorded(training: Training) -> Trace:
    """Return the trace of an iteration of `training`."""
    gc.collect()  # models of earlier cases would be recorded, too
    return record(training.step)


def case(model: str, words: str) -> Row:
    """Return the figures of one technique, or of several, on one model."""
    chosen = parse_techniques(words)
    base = recorded(MODELS[model]())
    row: Row = {"model": model, "with": words, "before_bytes": peak_of(base)}
    try:
        measured = recorded(applied(MODELS[model](), words))
    except ImportError as error:
        return row | {"missing": error.name}
    foreseen = compressed(base, chosen)
    row |= {"foreseen_bytes": peak_of(foreseen), "measured_bytes": peak_of(measured)}
    row |= {"foreseen_floor": smallest_budget(foreseen)[0], "measured_floor": smallest_budget(measured)[0]}
    return row | {"error": row["foreseen_bytes"] / row["measured_bytes"] - 1}


def applied(training: Training, words: str) -> Training:
    """Apply each technique to `training`, as its library does."""
    for each in parse_techniques(words):
        apply: Callable[[Training, int], Training] = APPLIED[each.technique.name]
        training = apply(training, each.number)
    return training


def table(rows: Sequence[Row]) -> Table:
    """Return one row a case."""
    columns = ["model", "with", "as it is", "foreseen", "recorded", "off by", "smallest, foreseen", "recorded "]
    return Table("Peaks and smallest budgets", columns, [_cells(row) for row in rows])


def _cells(row: Row) -> list[str]:
    first = [row["model"], row["with"], mb(row["before_bytes"])]
    if "missing" in row:
        return [*first, f"no {row['missing']}", "", "", "", ""]
    names = ("foreseen_bytes", "measured_bytes", "foreseen_floor", "measured_floor")
    peak, real, floor, real_floor = (mb(row[name]) for name in names)
    return [*first, peak, real, f"{100 * row['error']:+.1f} %", floor, real_floor]


def run(*, only: Annotated[Sequence[str], {"help": "of models or techniques"}] = ()) -> Iterator[Result]:
    """Foresee each technique, apply it, record, and compare."""
    rows = [case(model, words) for model, words in CASES if not only or {model, *words.split(",")} & set(only)]
    missed = [(row["model"], row["with"]) for row in rows if abs(row.get("error", 0)) > BAR]
    notes = [f"{model}, {words}: {KNOWN.get((model, words), 'not known why')}" for model, words in missed]
    code = int(any(each not in KNOWN for each in missed))
    yield Result("" if only else "whatif_with", rows, [table(rows)], notes, exit_code=code)
