"""Compiled models: bits at shares of the peak, how low a budget can be, and the cost of a kernel's call.

How low: the smallest budget at which no op is mapped, beside the largest op's working set. A generated kernel is an op.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.common.compiled_programs import COMPILED_OPTIMIZER, PROGRAMS, STEPS, train
from benchmarks.common.result import Result, Row, Table, mb
from benchmarks.common.timing import in_turn, ns_a_call
from benchmarks.common.under_a_plan import us_under_a_plan
from benchmarks.common.waiting import wait_for_plans
from memfit.errors import BudgetError
from memfit.ir import Trace
from memfit.planning.lifetimes import peak_live, working_sets
from memfit.running.session import Session

SHARES = ("60%", "40%", "25%")
FLOORS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0)
"""Of the largest working set."""
PARTITIONED = 0.4
"""Of the peak with torch's partition: a budget from the first op on."""
TENSORS = (2, 4, 8, 16)
_CALLS = 200
_REPEATS = 300
_TURNS = 15
WAYS = ("plain", "attached", "limited", "planned")


def equality(name: str, plain: Sequence[Tensor], share: str) -> Row:
    """Train under a share of the peak; return whether each bit is that of the plain run, and what the session did."""
    with Session(share, "ram", device="cpu") as session:
        found = train(name)
        equal = all(torch.equal(one, other) for one, other in zip(found, plain, strict=True))
    return {
        "share": share, "equal": equal, "planned_iterations": session.planned_iterations,
        "bytes_out": session.stats.bytes_out, "mapped_ops": session.stats.mapped_ops,
    }  # fmt: skip


def largest(trace: Trace) -> tuple[str, int]:
    """Return the op of an iteration with the largest working set, and that."""
    sizes = working_sets(trace)
    at = int(sizes.argmax())
    return trace.ops[at].name, int(sizes[at])


def floor(name: str) -> Row:
    """Return the smallest of the budgets in which it trains with nothing mapped, beside the largest working set."""
    with Session(None, "ram", device="cpu") as session:
        train(name, 4)
    op, size = largest(session.trace)
    facts: Row = {"op": op, "working_set": size, "tensors": tensors_of_kernels(session.trace)}
    for share in FLOORS:
        try:
            with Session(int(size * share), "ram", device="cpu", plan=False, map="never", split="never"):
                train(name, 2)
        except BudgetError:
            continue
        return {**facts, "budget": int(size * share), "share": share}
    return {**facts, "budget": None, "share": None}


def tensors_of_kernels(trace: Trace) -> list[int]:
    """Return how many storages each generated kernel of an iteration uses."""
    return [len({*op.reads, *op.writes}) for op in trace.ops if op.name.startswith("inductor::")]


def partitions(name: str) -> dict[str, Row]:
    """Return what its passes keep with torch's partition and with memfit's: peaks, and what moves within one budget."""
    found: dict[str, Row] = {}
    with _afresh(None, "torch") as session:
        train(name)
    budget = int(PARTITIONED * peak_live(session.trace)[0])
    for way in ("torch", "recompute"):
        with _afresh(budget, way) as session:
            train(name)
        stats = session.stats
        found[way] = {
            "peak": peak_live(session.trace)[0], "budget": budget, "bytes_out": stats.bytes_out,
            "planned_iterations": session.planned_iterations,
        }  # fmt: skip
    torch.compiler.reset()
    return found


def _afresh(budget: int | None, partition: str) -> Session:
    torch.compiler.reset()
    gc.collect()  # of what was compiled before, which a session would count
    return Session(budget, "ram", device="cpu", partition=partition)


def program(name: str) -> Row:
    """Return what there is to say of one program."""
    plain = [tensor.clone() for tensor in train(name)]
    return {"program": name, "compiled_optimizer": name in COMPILED_OPTIMIZER, "floor": floor(name),
            "shares": [equality(name, plain, share) for share in SHARES]}  # fmt: skip


def kernel(tensors: int) -> Callable[[], object]:
    """Return a call of a kernel of so many small tensors, half of which it writes to, as a graph calls it."""
    from torch._inductor.codecache import PyCodeCache

    torch.compiler.reset()
    given = [torch.ones(16) for _ in range(tensors // 2)]
    torch.compile(lambda *inputs: [each + 1 for each in inputs])(*given)
    wrapper: Any = PyCodeCache.modules[-1]
    name = next(name for name in vars(wrapper) if name.startswith("cpp_fused"))
    arguments = [*given, *(torch.ones(16) for _ in given)]
    return lambda: getattr(wrapper, name)(*arguments)


def us_a_call(sizes: Sequence[int]) -> dict[str, dict[str, list[float]]]:
    """Return the microseconds of a call by the number of tensors: and by each of WAYS.

    All take turns: the machine is faster at one time than at another.
    """
    ways: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext, "attached": lambda: _attached(None), "limited": lambda: _attached(1 << 30),
    }  # fmt: skip
    kernels = {tensors: kernel(tensors) for tensors in sizes}
    turns = {
        f"{way} {tensors}": _timed(call, inside) for tensors, call in kernels.items() for way, inside in ways.items()
    } | {f"planned {tensors}": partial(_planned, call) for tensors, call in kernels.items()}
    measured = in_turn(turns, _TURNS)
    return {str(tensors): {way: measured[f"{way} {tensors}"] for way in WAYS} for tensors in sizes}


def _attached(budget: int | None) -> Session:
    return Session(budget, "ram", device="cpu", record=False)


def _timed(call: Callable[[], object], inside: Callable[[], AbstractContextManager[object]]) -> Callable[[], float]:
    def measured() -> float:
        with inside():
            return min(ns_a_call(call, _CALLS) for _ in range(_REPEATS)) / 1000

    return measured


def _planned(call: Callable[[], object]) -> float:
    return min(us_under_a_plan(call, _CALLS))


def table(rows: Sequence[Row]) -> Table:
    """Return how each program has trained within budgets."""
    lines = [
        [row["program"], *(_share(each) for each in row["shares"]), mb(row["floor"]["working_set"]), row["floor"]["op"],
         "-" if row["floor"]["share"] is None else f"{row['floor']['share']:.2f}x",
         f"{statistics.mean(row['floor']['tensors']):.1f}, {max(row['floor']['tensors'])} at most"]
        for row in rows
    ]  # fmt: skip
    columns = ["compiled", *SHARES, "largest working set", "of", "smallest budget", "a kernel's tensors"]
    return Table("Compiled models", columns, lines)


def call_table(calls: dict[str, dict[str, list[float]]]) -> Table:
    """Return what a call of a kernel costs more in a session."""
    lines = [[tensors, *(_added(us, way) for way in WAYS[1:])] for tensors, us in calls.items()]
    return Table("A call of a kernel", ["tensors", "attached", "with a limit", "under a plan"], lines)


def kept_table(rows: Sequence[Row]) -> Table:
    """Return what recomputation in compiled passes has changed."""
    lines = []
    for row in rows:
        usual, own = row["torch"], row["recompute"]
        lines.append([
            row["program"], mb(usual["peak"]), mb(own["peak"]), mb(own["budget"]),
            f"{own['bytes_out'] / max(usual['bytes_out'], 1):.2f}x",
        ])  # fmt: skip
    columns = ["compiled", "peak", "with recomputation", "budget of both", "bytes moved"]
    return Table("What compiled passes keep", columns, lines)


def _share(row: Row) -> str:
    return f"{'equal' if row['equal'] else 'DIFFERENT'}, {row['planned_iterations']} of {STEPS} planned"


def _added(us: dict[str, list[float]], way: str) -> str:
    return f"+{statistics.median(b - a for a, b in zip(us['plain'], us[way], strict=True)):.2f} us"


def run(*, only: Sequence[str] = tuple(PROGRAMS)) -> Iterator[Result]:
    """Train each of the programs plainly and under budgets, and time kernels that do nearly nothing."""
    wait_for_plans()
    calls = us_a_call(TENSORS)
    yield Result("compiled_calls", calls, [call_table(calls)])
    kept = [{"program": name, **partitions(name)} for name in only]
    yield Result("compiled_kept", kept, [kept_table(kept)])
    rows = [program(name) for name in only]
    failed = any(not share["equal"] for row in rows for share in row["shares"])
    yield Result("compiled", rows, [table(rows)], exit_code=int(failed))
