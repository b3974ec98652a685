"""What being attached costs when nothing has to move: per op on a loop of tiny ops, and on a decoder's step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from benchmarks.common.examples import median_step, run_worker
from benchmarks.common.result import Result, Table
from benchmarks.common.timing import in_turn, ns_a_call
from memfit.running.session import Session

# Long enough steps that the clock decides and not the operating system.
DECODER = ["--layers", "4", "--width", "256", "--batch", "8"]
ATTACHED = 4 << 30  # bytes: nothing has to move
_TINY = 20_000  # ops


def tiny_op_us(*, attached: bool) -> float:
    """Return the microseconds one small addition takes, plainly or in a session."""
    with Session(1 << 30, "ram", device="cpu", record=False) if attached else nullcontext():
        a = torch.ones(4)
        return ns_a_call(lambda: a + a, _TINY) / 1000


def decoder_ratio(steps: int) -> float:
    """Return attached / plain median of the step time, of a pair of runs."""
    arguments = [*DECODER, "--steps", str(steps)]
    plain = median_step(run_worker("decoder", arguments, "plain"), 3)
    return median_step(run_worker("decoder", arguments, ATTACHED), 3) / plain


def table(figures: dict[str, Any]) -> Table:
    """Return the cost of an op and of a decoder's step."""
    plain, added, ratios = figures["plain_us"], figures["added_us"], figures["decoder_ratios"]
    middle = statistics.median
    per_op = [f"{middle(plain):.2f} us", f"+{middle(added):.2f} us", f"{min(added):.2f} to {max(added):.2f} us"]
    step = ["1", f"{middle(ratios):.3f}x", f"{min(ratios):.3f} to {max(ratios):.3f}"]
    rows = [["one tiny op", *per_op], ["decoder step", *step]]
    return Table("Attached, nothing to move", ["", "plain", "attached (median)", "range"], rows)


def run(*, repeats: int = 7, decoder_repeats: int = 5, decoder_steps: int = 14) -> Iterator[Result]:
    """Time tiny ops in this process, and the decoder in others."""
    torch.set_num_threads(1)
    us = in_turn({how: partial(tiny_op_us, attached=how == "attached") for how in ("plain", "attached")}, repeats)
    figures = {
        "added_us": [attached - plain for plain, attached in zip(us["plain"], us["attached"], strict=True)],
        "plain_us": us["plain"],
        "decoder_ratios": [decoder_ratio(decoder_steps) for _ in range(decoder_repeats)],
        "decoder": DECODER,
        "script": "examples/decoder.py",
    }
    yield Result("overhead", figures, [table(figures)])
