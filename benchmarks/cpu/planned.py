"""Training from a plan: is the arena's footprint the plan's, are the bits the same, what does an allocation cost."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import cpp_extension

from benchmarks.common.examples import EXAMPLES, run_worker, script_of, sized
from benchmarks.common.result import Result, Row, Table, mb
from benchmarks.common.timing import in_turn
from memfit.planning.addresses import Takes, plan_addresses
from memfit.running import engine
from memfit.running.engine import RemakeTableColumns, SwapTableColumns
from memfit.running.engine.tiers import TierSpec
from memfit.running.scripts.verify import verify
from memfit.running.session import Session

STEADY = 16  # optimizer steps; of the two-optimizer example as well
NO_SWAPS = SwapTableColumns(
    op_hashes=[0],
    block=[],
    ordinal=[],
    bytes=[],
    again=[],
    storage=[],
    out_after=[],
    free_by=[],
    in_start=[],
    take=[],
    map_op=[],
    map_storage=[],
)
NO_REMAKES = RemakeTableColumns(repeats=[], storage=[], after=[], before=[], take=[], kept=[], carried=[], last_take=[])
ROOM = 1.05  # the budget, over the peak of live bytes
SIZES = [1 << (6 + (7 * k) % 12) for k in range(64)]  # bytes, 64 B to 128 KiB


def example(name: str, steps: int) -> Row:
    """Train one example within a budget that its plan fits into, and compare with a plain run; sizes in bytes."""
    arguments = sized(name, steps)
    budget = int(ROOM * run_worker(name, arguments, "100%", tier="ram")["trace"]["peak"])
    verdict = verify(script_of(name), arguments, str(budget), TierSpec("ram"))
    # What was alive when the plan took over lies beside its zone until it dies: the peaks count from then on.
    stats = run_worker(name, arguments, budget, tier="ram", reset_peaks_at=STEADY)["stats"]
    sizes = {name: stats[f"{name}_bytes"] for name in ("planned_footprint", "peak_footprint", "peak_live")}
    counts = {name: stats[name] for name in ("planned_allocations", "plan_mismatches", "allocations")}
    return {"example": name, "equal": verdict.difference is None, **sizes, **counts}


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


@functools.cache
def allocator() -> Any:
    """Build the loop against the installed torch; its `seconds(sizes, rounds)` is above."""
    include = "#include <c10/core/CPUAllocator.h>\n#include <chrono>\n"
    return cpp_extension.load_inline("allocations", include + ALLOCATIONS, functions=["seconds"])


def allocations_ns(end_of_iteration: Callable[[], None] = lambda: None, iterations: int = 300) -> float:
    """Return the ns one allocation and its free take."""
    total = 0.0
    for _ in range(iterations):
        total += allocator().seconds(SIZES, 1)
        end_of_iteration()
    return total / iterations / len(SIZES) * 1e9


def in_session(*, planned: bool) -> float:
    """Return the same in a session, from a table or by searching."""
    with Session(64 << 20, "ram", device="cpu", record=False):
        if planned:
            before_ops = np.full(len(SIZES), -1)
            takes = Takes(np.full(len(SIZES), len(SIZES)), np.array(SIZES), op=before_ops, ops=1)
            plan = plan_addresses(takes, alignment=64, effort=1.0)
            assert engine.load().use_plan(
                plan.columns, plan.zone_bytes, plan.iterations, NO_SWAPS, NO_REMAKES, [], True
            )
        ns = allocations_ns(engine.load().boundary)
        stats = engine.load().stats()
        assert stats["plan_mismatches"] == 0 and (stats["planned_allocations"] > 0) == planned
    return ns


WAYS: dict[str, Callable[[], float]] = {
    "torch's allocator": allocations_ns,
    "reactive arena": lambda: in_session(planned=False),
    "planned arena": lambda: in_session(planned=True),
}


def table(figures: dict[str, Any]) -> Table:
    """Return one row an example trained from a plan."""
    lines = []
    for row in figures["examples"]:
        real, plan = row["peak_footprint"], row["planned_footprint"]
        lines.append([row["example"], mb(plan), mb(real), f"{real / row['peak_live']:.4f}",
                      f"{row['planned_allocations']:,}", f"{row['plan_mismatches']:,}",
                      "equal" if row["equal"] else "different"])  # fmt: skip
    columns = ["example", "plan", "arena", "arena / peak live", "planned allocations", "mismatches", "bits"]
    return Table("Training from a plan", columns, lines)


def allocations_table(figures: dict[str, Any]) -> Table:
    """Return one row an allocator."""
    medians = figures["allocation_ns"]
    plain = next(iter(medians.values()))
    rows = [[name, f"{ns:.0f}", f"{ns / plain:.2f}"] for name, ns in medians.items()]
    return Table("An allocation and its free", ["allocator", "ns, median", "ratio"], rows)


def run(*, examples: Sequence[str] = tuple(EXAMPLES), steps: int = 20, repeats: int = 9) -> Iterator[Result]:
    """Time allocations in this process, and train the examples in others."""
    torch.set_num_threads(1)
    runs = in_turn(WAYS, repeats)
    figures = {
        "allocation_ns": {name: statistics.median(times) for name, times in runs.items()},
        "allocation_runs_ns": runs,
        "examples": [example(name, steps) for name in examples],
    }
    yield Result("planned", figures, [allocations_table(figures), table(figures)])
