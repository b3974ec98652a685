"""What being attached costs when nothing has to move: per op on loops of small ops, and on a decoder's step.

Torch tells an observer of each op, and makes values of its arguments and results for that. What this takes by itself is
measured with an observer that does nothing: no session can cost less.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common.examples import median_step, run_worker
from benchmarks.common.result import Result, Table
from benchmarks.common.timing import in_turn, ns_a_call
from benchmarks.common.under_a_plan import us_under_a_plan
from benchmarks.common.waiting import wait_for_plans
from memfit.running import engine
from memfit.running.session import Session

# Long enough steps that the clock decides and not the operating system.
DECODER = ["--layers", "4", "--width", "256", "--batch", "8"]
ATTACHED = 4 << 30  # bytes: nothing has to move
_CALLS = 20_000
_PLANNED_CALLS = 300  # in an iteration, all of which the plan has
WAYS = ("plain", "idle", "attached", "limited", "planned")


def operations() -> dict[str, Callable[[], Tensor]]:
    """Return ops on tensors so small that all their time is torch's dispatch."""
    a, rows, weight, bias = torch.ones(4), torch.ones(4, 8), torch.ones(8, 8), torch.ones(8)
    return {
        "tiny add": lambda: a + a,
        "linear": lambda: functional.linear(rows, weight, bias),
        "layer norm": lambda: functional.layer_norm(rows, (8,), bias, bias),
    }


@contextmanager
def idle_observer() -> Iterator[None]:
    """Have torch tell an observer of each op that does nothing."""
    engine.load().observe_idly(True)
    try:
        yield
    finally:
        engine.load().observe_idly(False)


def attached(budget: int | None) -> AbstractContextManager[object]:
    """Return a session that moves nothing, and records nothing."""
    return Session(budget, "ram", device="cpu", record=False)


def us_a_call(name: str, inside: Callable[[], AbstractContextManager[object]]) -> float:
    """Return the microseconds that an op takes inside of a context."""
    with inside():
        return ns_a_call(operations()[name], _CALLS) / 1000


def planned(name: str) -> float:
    """Return the microseconds that an op takes under a plan."""
    return statistics.median(us_under_a_plan(operations()[name], _PLANNED_CALLS))


def compare(name: str, repeats: int) -> dict[str, list[float]]:
    """Return the microseconds of an op in each of WAYS, measured in turn."""
    contexts: dict[str, Callable[[], AbstractContextManager[object]]] = {
        "plain": nullcontext, "idle": idle_observer, "attached": partial(attached, None),
        "limited": partial(attached, 1 << 30),
    }  # fmt: skip
    ways = {way: partial(us_a_call, name, inside) for way, inside in contexts.items()}
    return in_turn({**ways, "planned": partial(planned, name)}, repeats)


def decoder_ratio(steps: int) -> float:
    """Return attached / plain median of the step time, of a pair of runs."""
    arguments = [*DECODER, "--steps", str(steps)]
    plain = median_step(run_worker("decoder", arguments, "plain"), 3)
    return median_step(run_worker("decoder", arguments, ATTACHED), 3) / plain


def table(figures: dict[str, Any]) -> Table:
    """Return what each way adds to an op, and to a decoder's step."""
    columns = ["", "plain", "idle observer", "attached", "with a limit", "under a plan"]
    rows = [[name, *_cells(us)] for name, us in figures["ops_us"].items()]
    ratios = figures["decoder_ratios"]
    step = f"{statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})"
    return Table("Attached, nothing to move", columns, [*rows, ["decoder step", "1", "", step, "", ""]])


def _cells(us: dict[str, list[float]]) -> list[str]:
    plain = us["plain"]
    added = [statistics.median(b - a for a, b in zip(plain, us[way], strict=True)) for way in WAYS[1:]]
    return [f"{statistics.median(plain):.2f} us", *(f"+{one:.2f} us" for one in added)]


def run(*, repeats: int = 7, decoder_repeats: int = 5, decoder_steps: int = 14) -> Iterator[Result]:
    """Time small ops in this process, and the decoder in others."""
    torch.set_num_threads(1)
    wait_for_plans()
    figures = {
        "ops_us": {name: compare(name, repeats) for name in operations()},
        "decoder_ratios": [decoder_ratio(decoder_steps) for _ in range(decoder_repeats)],
        "decoder": DECODER,
        "script": "examples/decoder.py",
    }
    yield Result("overhead", figures, [table(figures)])
