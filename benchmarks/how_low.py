"""How low a budget can go: the smallest feasible one against the largest single op's working set."""

from __future__ import annotations

import argparse
from typing import Any

from common import EXAMPLES, run_worker, save, show

FACTORS = (1.0, 1.01, 1.02, 1.03, 1.05, 1.08, 1.10, 1.15, 1.25)


def smallest(example: str, steps: int) -> dict[str, Any]:
    """Return the first factor of the largest working set at which the example trains, from the first op on."""
    arguments = [*EXAMPLES[example], "--steps", str(steps)]
    facts = run_worker(example, arguments, "100%", tier="ram")
    row = {"example": example, "trace_peak": facts["trace_peak"], "working_set": facts["largest_working_set"]}
    errors = []
    for factor in FACTORS:
        result = run_worker(example, arguments, int(row["working_set"] * factor), tier="ram")
        if not result["error"]:
            return row | {"factor": factor, "peak_footprint": result["peak_footprint"], "errors": errors}
        errors.append(result["error"])
    return row | {"factor": None, "errors": errors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    rows = [smallest(example, args.steps) for example in args.examples]
    columns = ["example", "peak MB", "largest op's working set MB", "smallest budget / working set", "/ peak"]
    show("How low", columns, [line(row) for row in rows])
    save("how_low", rows)


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    factor = row["factor"]
    share = "-" if factor is None else f"{factor * row['working_set'] / row['trace_peak']:.0%}"
    return [row["example"], f"{row['trace_peak'] / 1e6:.1f}", f"{row['working_set'] / 1e6:.1f}",
            "> 1.25" if factor is None else f"{factor:.2f}", share]  # fmt: skip


if __name__ == "__main__":
    main()
