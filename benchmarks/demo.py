"""The main job: an unmodified script trained plainly and inside a budget, with the proof that nothing changed."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from common import run_worker, save, show

from memfit.running.engine.tiers import parse_tier
from memfit.running.scripts.verify import Verdict, verify
from memfit.units import format_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script")
    parser.add_argument("--share", type=float, default=0.5, help="of the plain run's peak of live tensors")
    parser.add_argument("arguments", nargs="*")
    args = parser.parse_args()
    print(f"Measuring {args.script} {' '.join(args.arguments)} without a limit ...", flush=True)
    peak = run_worker(args.script, args.arguments, "100%", tier="disk")["trace_peak"]
    budget = int(peak * args.share)
    print(f"Its tensors peak at {format_bytes(peak)}. Training it plainly and inside {format_bytes(budget)}, and")
    print("comparing every loss, gradient, weight and optimizer state at every step ...", flush=True)
    verdict = verify(args.script, args.arguments, str(budget), parse_tier("disk"))
    show("Same script, same bits", ["", "plain", "memfit, disk tier"], table(verdict, peak))
    save("demo", verdict.as_dict() | {"peak_live": peak, "script": args.script, "arguments": args.arguments})
    sys.exit(0 if verdict.difference is None else 4)


def table(verdict: Verdict, peak: int) -> list[list[Any]]:
    """Return what a person wants to know of both runs."""
    plain, limited = verdict.plain, verdict.limited
    stats = limited.stats or {}
    compared = f"{sum(verdict.compared.values())} hashes over {verdict.steps} steps"
    equal = "all equal" if verdict.difference is None else str(verdict.difference)
    return [
        ["tensor memory, peak", format_bytes(peak), format_bytes(stats["peak_footprint_bytes"])],
        ["budget", "-", format_bytes(stats["budget_bytes"])],
        ["process peak RSS", format_bytes(plain.peak_rss_bytes), format_bytes(limited.peak_rss_bytes)],
        ["time", f"{plain.seconds:.1f} s", f"{limited.seconds:.1f} s"],
        ["moved out / in", "-", f"{format_bytes(stats['bytes_out'])} / {format_bytes(stats['bytes_in'])}"],
        [compared, "", equal],
    ]


if __name__ == "__main__":
    main()
