"""Training from a plan: is the arena's footprint the plan's, are the bits the same, what does an allocation cost."""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
from common import EXAMPLES, ROOT, run_worker, save, show
from torch.utils import cpp_extension

from memfit.planning.addresses import Takes, plan_addresses
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.verify import verify
from memfit.running.session import Session

STEADY = 16  # optimizer steps; of the two-optimizer example as well
NO_SWAPS: dict[str, list[int]] = {
    name: []
    for name in ("op_hashes", "block", "ordinal", "bytes", "storage", "out_after", "free_by", "in_start", "take")
}
ROOM = 1.05  # the budget, over the peak of live bytes
SIZES = [1 << (6 + (7 * k) % 12) for k in range(64)]  # bytes, 64 B to 128 KiB


def example(name: str, steps: int) -> dict[str, Any]:
    """Train one example within a budget that its plan fits into, and compare with a plain run."""
    arguments = [*EXAMPLES[name], "--steps", str(steps)]
    peak = run_worker(name, arguments, "100%", tier="ram")["trace_peak"]
    verdict = verify(str(ROOT / "examples" / f"{name}.py"), arguments, str(int(ROOM * peak)), TierSpec("ram"))
    # What was alive when the plan took over lies beside its zone until it dies: the peaks count from then on.
    facts = run_worker(name, arguments, int(ROOM * peak), tier="ram", reset_peaks_at=STEADY)
    keys = ("planned_footprint", "peak_footprint", "peak_live", "planned_allocations", "plan_mismatches", "allocations")
    return {"example": name, "equal": verdict.difference is None} | {key: facts[key] for key in keys}


# An op costs more than an allocation: the allocator is called by itself.
ALLOCATIONS = """
double seconds(std::vector<int64_t> sizes, int64_t rounds) {
  std::vector<at::DataPtr> alive(sizes.size());
  auto started = std::chrono::steady_clock::now();
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < sizes.size(); ++i) alive[i] = c10::GetCPUAllocator()->allocate(sizes[i]);
    for (at::DataPtr& pointer : alive) pointer.clear();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}
"""


def allocations_ns(end_of_iteration: Callable[[], None] = lambda: None, iterations: int = 300) -> float:
    """Return the ns one allocation and its free take."""
    total = 0.0
    for _ in range(iterations):
        total += allocator().seconds(SIZES, 1)
        end_of_iteration()
    return total / iterations / len(SIZES) * 1e9


@functools.cache
def allocator() -> ModuleType:
    """Build the loop above against the installed torch."""
    include = "#include <c10/core/CPUAllocator.h>\n#include <chrono>\n"
    return cpp_extension.load_inline("allocations", include + ALLOCATIONS, functions=["seconds"])


def in_session(*, planned: bool) -> float:
    """Return the same in a session, from a table or by searching."""
    with Session(64 << 20, "ram", device="cpu", record=False):
        if planned:
            takes = Takes(np.full(len(SIZES), len(SIZES)), np.array(SIZES))
            plan = plan_addresses(takes, alignment=64, effort=1.0)
            columns = plan.columns()
            assert engine.load().use_plan(columns, plan.zone_bytes, plan.iterations, NO_SWAPS, [], True)
        ns = allocations_ns(engine.load().boundary)
        stats = engine.load().stats()
        assert stats["plan_mismatches"] == 0 and (stats["planned_allocations"] > 0) == planned
    return ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, Callable[[], float]] = {
        "torch's allocator": allocations_ns,
        "reactive arena": lambda: in_session(planned=False),
        "planned arena": lambda: in_session(planned=True),
    }
    runs = {name: [] for name in ways}
    for _ in range(args.repeats):  # in turn, so that what disturbs one disturbs all
        for name, way in ways.items():
            runs[name].append(way())
    medians = {name: statistics.median(times) for name, times in runs.items()}
    rows = [example(name, args.steps) for name in args.examples]
    show("An allocation and its free", ["allocator", "ns, median", "ratio"],
         [[name, f"{ns:.0f}", f"{ns / medians[next(iter(ways))]:.2f}"] for name, ns in medians.items()])  # fmt: skip
    columns = ["example", "plan MB", "real MB", "real / peak live", "planned", "mismatches", "bits"]
    show("Training from a plan", columns, [line(row) for row in rows])
    save("planned", {"allocation_ns": medians, "allocation_runs_ns": runs, "examples": rows})


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    real = row["peak_footprint"]
    return [row["example"], f"{row['planned_footprint'] / 1e6:.3f}", f"{real / 1e6:.3f}",
            f"{real / row['peak_live']:.4f}", str(row["planned_allocations"]), str(row["plan_mismatches"]),
            "equal" if row["equal"] else "DIFFERENT"]  # fmt: skip


if __name__ == "__main__":
    main()
