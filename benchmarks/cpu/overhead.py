"""What being attached costs when nothing has to move: per op on a loop of tiny ops, and on a decoder's step."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from typing import TypedDict

import torch

from benchmarks.common.examples import median_step, run_worker
from benchmarks.common.result import Result, Table
from memfit.running.session import Session

# Long enough steps that the clock decides and not the operating system.
DECODER = ["--layers", "4", "--width", "256", "--batch", "8"]
ATTACHED = 4 << 30  # bytes: nothing has to move


class Figures(TypedDict):
    """What the file holds: one figure for each repetition."""

    added_us: list[float]
    plain_us: list[float]
    decoder_ratios: list[float]
    decoder: list[str]
    script: str


def tiny_ops(count: int) -> float:
    """Return the microseconds one small addition takes."""
    a = torch.ones(4)
    for _ in range(count // 10):
        a + a
    started = time.perf_counter()
    for _ in range(count):
        a + a
    return (time.perf_counter() - started) / count * 1e6


def per_op(repeats: int, count: int) -> list[tuple[float, float]]:
    """Return pairs of microseconds an op, plain and attached, measured in turn."""
    pairs = []
    for _ in range(repeats):
        plain = tiny_ops(count)
        with Session(1 << 30, "ram", device="cpu", record=False):
            pairs.append((plain, tiny_ops(count)))
    return pairs


def decoder_ratio(steps: int) -> float:
    """Return attached / plain median of the step time, of a pair of runs."""
    arguments = [*DECODER, "--steps", str(steps)]
    plain = median_step(run_worker("decoder", arguments, "plain"), 3)
    return median_step(run_worker("decoder", arguments, ATTACHED), 3) / plain


def table(figures: Figures) -> Table:
    """Return the cost of an op and of a decoder's step."""
    plain, added, ratios = figures["plain_us"], figures["added_us"], figures["decoder_ratios"]
    middle = statistics.median
    per_op = [f"{middle(plain):.2f} us", f"+{middle(added):.2f} us", f"{min(added):.2f} to {max(added):.2f} us"]
    step = ["1", f"{middle(ratios):.3f}x", f"{min(ratios):.3f} to {max(ratios):.3f}"]
    rows = [["one tiny op", *per_op], ["decoder step", *step]]
    return Table("Attached, nothing to move", ["", "plain", "attached (median)", "range"], rows)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be chosen."""
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--decoder-repeats", type=int, default=5)
    parser.add_argument("--decoder-steps", type=int, default=14)


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Time tiny ops in this process, and the decoder in others."""
    torch.set_num_threads(1)
    pairs = per_op(args.repeats, 20_000)
    ratios = [decoder_ratio(args.decoder_steps) for _ in range(args.decoder_repeats)]
    figures = Figures(
        added_us=[attached - plain for plain, attached in pairs],
        plain_us=[plain for plain, _ in pairs],
        decoder_ratios=ratios,
        decoder=DECODER,
        script="examples/decoder.py",
    )
    yield Result("overhead", figures, [table(figures)])
