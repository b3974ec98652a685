"""SmartPool and CnMem on the SmartPool paper's own traces, beside the figures the paper publishes.

The paper's MB are 2^20 bytes. Its traces are not part of this repository: MEMFIT_DATA says where they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from benchmarks.common.paths import paper_mallocs
from benchmarks.common.result import Result, Table
from memfit.baselines.allocators import run_allocator
from memfit.baselines.allocators.cnmem import CnMem
from memfit.baselines.allocators.replay import replay
from memfit.baselines.allocators.smartpool import detect
from memfit.events import MallocStream, events_of_lifetimes
from memfit.files import load_paper_mallocs

MIB = 1 << 20
# Detector's event, start and length; peak live, SmartPool and CnMem in MiB; the first block of CnMem that gives it.
PUBLISHED: dict[str, dict[str, Any]] = {
    "alexnet": {"detector": [599, 201, 188], "peak": 178.88, "smartpool": 179.18, "cnmem": 195.2, "first_block": MIB},
    "vgg": {
        "detector": [5399, 2245, 1020],
        "peak": 640.70,
        "smartpool": 673.70,
        "cnmem": 712.62,
        "first_block": 256 * MIB,
    },
}
OTHERS = ("pytorch", "pytorch-expandable", "bfc", "superneurons", "profile-guided")

COLUMNS = ("net", "detector: event, start, length", "peak MiB", "SmartPool MiB", "over peak", "CnMem MiB", "grows")


def measure(net: str, events: MallocStream) -> dict[str, Any]:
    """Return what is measured on `events`, with the published figures."""
    decision = detect(events)
    pool = run_allocator("smartpool", events)
    cnmem = replay("cnmem", CnMem(PUBLISHED[net]["first_block"]), events)
    return {
        "net": net,
        "published": PUBLISHED[net],
        "detector": [decision.event, decision.start, decision.length] if decision else None,
        "peak_mib": round(pool.peak_live_bytes / MIB, 3),
        "smartpool_mib": round(pool.footprint_bytes / MIB, 3),
        "smartpool_over_peak": round(1 + pool.over_peak, 5),
        "smartpool_seconds": round(pool.seconds, 3),
        "cnmem_mib": round(cnmem.footprint_bytes / MIB, 3),
        "cnmem_grows": cnmem.driver_allocations,
        "others_mib": {name: round(run_allocator(name, events).footprint_bytes / MIB, 2) for name in OTHERS},
    }


def row(result: dict[str, Any]) -> list[str]:
    """Return one line of the table."""
    published = result["published"]
    return [
        result["net"],
        f"{result['detector']} ({published['detector']})",
        f"{result['peak_mib']:.2f} ({published['peak']:.2f})",
        f"{result['smartpool_mib']:.2f} ({published['smartpool']:.2f})",
        f"{result['smartpool_over_peak']:.5f}",
        f"{result['cnmem_mib']:.2f} ({published['cnmem']})",
        str(result["cnmem_grows"]),
    ]


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Replay both nets."""
    results = [measure(net, events_of_lifetimes(load_paper_mallocs(paper_mallocs(net)))) for net in PUBLISHED]
    measured = Table("SmartPool's paper: measured (published)", COLUMNS, [row(result) for result in results])
    others = [[result["net"], *result["others_mib"].values()] for result in results]
    yield Result("paper_smartpool", results, [measured, Table("Other allocators, MiB", ("net", *OTHERS), others)])
