"""The main job: an unmodified script trained plainly and inside a budget, with the proof that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from benchmarks.common.examples import run_worker
from benchmarks.common.result import Result, Table
from memfit.running.engine.tiers import parse_tier
from memfit.running.scripts.verify import Verdict, verify
from memfit.units import format_bytes


def run(
    script: str,
    arguments: Sequence[str],
    *,
    share: Annotated[float, {"help": "of the plain run's peak of live tensors"}] = 0.5,
) -> Iterator[Result]:
    """Measure the script's peak, and verify it at a share of that."""
    print(f"Measuring {script} {' '.join(arguments)} without a limit ...", flush=True)
    peak = run_worker(script, arguments, "100%", tier="disk")["trace"]["peak"]
    budget = int(peak * share)
    print(f"Its tensors peak at {format_bytes(peak)}. Training it plainly and inside {format_bytes(budget)}, and")
    print("comparing every loss, gradient, weight and optimizer state at every step ...", flush=True)
    verdict = verify(script, arguments, str(budget), parse_tier("disk"))
    figures = verdict.as_dict() | {"peak_live": peak, "script": script, "arguments": arguments}
    yield Result("demo", figures, [table(verdict, peak)], exit_code=0 if verdict.difference is None else 4)


def table(verdict: Verdict, peak: int) -> Table:
    """Return what a person wants to know of both runs."""
    plain, limited = verdict.plain, verdict.limited
    stats = limited.stats or {}
    compared = f"{sum(verdict.compared.values())} hashes over {verdict.steps} steps"
    equal = "all equal" if verdict.difference is None else str(verdict.difference)
    rows = [
        ["tensor memory, peak", format_bytes(peak), format_bytes(stats["peak_footprint_bytes"])],
        ["budget", "-", format_bytes(stats["budget_bytes"])],
        ["process peak RSS", format_bytes(plain.peak_rss_bytes), format_bytes(limited.peak_rss_bytes)],
        ["time", f"{plain.seconds:.1f} s", f"{limited.seconds:.1f} s"],
        ["moved out / in", "-", f"{format_bytes(stats['bytes_out'])} / {format_bytes(stats['bytes_in'])}"],
        [compared, "", equal],
    ]
    return Table("Same script, same bits", ["", "plain", "memfit, disk tier"], rows)
