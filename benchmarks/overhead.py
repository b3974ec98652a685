"""What being attached costs when nothing has to move: per op on a loop of tiny ops, and on a decoder's step."""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from common import ROOT, run_worker, save, show, step_seconds

from memfit.running.session import Session

# Long enough steps that the clock decides and not the operating system.
DECODER = ["--layers", "4", "--width", "256", "--batch", "8"]


def tiny_ops(count: int) -> float:
    """Return the seconds one small addition takes."""
    a = torch.ones(4)
    for _ in range(count // 10):
        a + a
    started = time.perf_counter()
    for _ in range(count):
        a + a
    return (time.perf_counter() - started) / count


def per_op(repeats: int, count: int) -> list[tuple[float, float]]:
    """Return pairs of seconds an op, plain and attached, measured in turn."""
    pairs = []
    for _ in range(repeats):
        plain = tiny_ops(count)
        with Session(1 << 30, "ram", device="cpu", record=False):
            pairs.append((plain, tiny_ops(count)))
    return pairs


def decoder_ratios(repeats: int, steps: int) -> list[float]:
    """Return attached / plain medians of the step time, one for each pair of runs."""
    arguments = [*DECODER, "--steps", str(steps)]
    ratios = []
    for _ in range(repeats):
        plain = statistics.median(step_seconds(run_worker("decoder", arguments, "plain"), 3))
        attached = statistics.median(step_seconds(run_worker("decoder", arguments, 4 << 30), 3))
        ratios.append(attached / plain)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--decoder-repeats", type=int, default=5)
    parser.add_argument("--decoder-steps", type=int, default=14)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pairs = per_op(args.repeats, 20_000)
    added_us = [(attached - plain) * 1e6 for plain, attached in pairs]
    ratios = decoder_ratios(args.decoder_repeats, args.decoder_steps)
    rows = [
        ["tiny add", f"{statistics.median(p for p, _ in pairs) * 1e6:.2f} us",
         f"+{statistics.median(added_us):.2f} us", f"{min(added_us):.2f} .. {max(added_us):.2f} us"],
        ["decoder step", "1", f"x{statistics.median(ratios):.3f}", f"{min(ratios):.3f} .. {max(ratios):.3f}"],
    ]  # fmt: skip
    show("Attached, nothing to move", ["loop", "plain", "attached (median)", "range"], rows)
    save("overhead", {"added_us": added_us, "plain_us": [p * 1e6 for p, _ in pairs], "decoder_ratios": ratios,
                      "decoder": DECODER, "script": str((ROOT / "examples/decoder.py").relative_to(ROOT))})  # fmt: skip


if __name__ == "__main__":
    main()
