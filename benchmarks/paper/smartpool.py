"""SmartPool and CnMem replayed on two of the SmartPool paper's traces, beside the authors' figures and our own.

None of the figures stands in the paper's text. `AUTHORS` are from the figure data and the logs that the authors
published with the traces. `RESIMULATED` are of our own earlier simulation of their code, with a first block of CnMem
that was chosen for each net. The traces are not part of this repository: MEMFIT_DATA says where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.common.paths import paper_mallocs
from benchmarks.common.result import Result, Row, Table
from memfit.baselines.allocators import run_allocator
from memfit.baselines.allocators.cnmem import CnMem
from memfit.baselines.allocators.replay import replay
from memfit.baselines.allocators.smartpool import detect
from memfit.events import MallocStream, events_of_lifetimes
from memfit.files import load_paper_mallocs

MIB = 1 << 20
# In MiB.
AUTHORS: dict[str, dict[str, float]] = {
    "alexnet": {"peak": 178.88, "smartpool": 179.18, "cnmem_log": 256.0},
    "vgg": {"peak": 640.70, "smartpool": 673.70, "cnmem_log": 707.37},
}
# The detector's event, start and length; CnMem in MiB, with its first block in bytes.
RESIMULATED: dict[str, dict[str, Any]] = {
    "alexnet": {"detector": [599, 201, 188], "cnmem": 195.2, "first_block": MIB},
    "vgg": {"detector": [5399, 2245, 1020], "cnmem": 712.62, "first_block": 256 * MIB},
}
OTHERS = ("pytorch", "pytorch-expandable", "bfc", "superneurons", "profile-guided")
TITLE = "SmartPool's traces: measured (by the authors' figures, or by our own re-simulation where that is said)"
COLUMNS = ("net", "detector: event, start, length (re-simulated)", "peak MiB (authors)", "SmartPool MiB (authors)",
           "over peak", "CnMem MiB (re-simulated)", "CnMem, authors' log", "grows")  # fmt: skip


def measure(net: str, events: MallocStream) -> Row:
    """Return what is measured on `events`, with the other figures there are."""
    decision = detect(events)
    pool = run_allocator("smartpool", events)
    cnmem = replay("cnmem", CnMem(RESIMULATED[net]["first_block"]), events)
    return {
        "net": net,
        "authors": AUTHORS[net],
        "resimulated": RESIMULATED[net],
        "detector": [decision.event, decision.start, decision.length] if decision else None,
        "peak_mib": round(pool.peak_live_bytes / MIB, 3),
        "smartpool_mib": round(pool.footprint_bytes / MIB, 3),
        "smartpool_over_peak": round(1 + pool.over_peak, 5),
        "smartpool_seconds": round(pool.seconds, 3),
        "cnmem_mib": round(cnmem.footprint_bytes / MIB, 3),
        "cnmem_grows": cnmem.driver_allocations,
        "others_mib": {name: round(run_allocator(name, events).footprint_bytes / MIB, 2) for name in OTHERS},
    }


def table(results: list[Row]) -> Table:
    """Return one row a net: what is measured, with the figure it is held against in brackets."""
    rows = []
    for result in results:
        authors, again = result["authors"], result["resimulated"]
        rows.append([
            result["net"],
            f"{result['detector']} ({again['detector']})",
            f"{result['peak_mib']:.2f} ({authors['peak']:.2f})",
            f"{result['smartpool_mib']:.2f} ({authors['smartpool']:.2f})",
            f"{result['smartpool_over_peak']:.5f}",
            f"{result['cnmem_mib']:.2f} ({again['cnmem']})",
            f"{authors['cnmem_log']:.2f}",
            str(result["cnmem_grows"]),
        ])  # fmt: skip
    return Table(TITLE, COLUMNS, rows)


def run() -> Iterator[Result]:
    """Replay both nets."""
    results = [measure(net, events_of_lifetimes(load_paper_mallocs(paper_mallocs(net)))) for net in AUTHORS]
    others = [[result["net"], *result["others_mib"].values()] for result in results]
    yield Result("paper_smartpool", results, [table(results), Table("Other allocators, MiB", ("net", *OTHERS), others)])
