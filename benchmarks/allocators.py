"""Every replayed allocator on real lifetimes: how much each reserves over the peak of live bytes.

The lifetimes are not part of this repository: name their files, by default those in ../shared/data.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from common import ROOT, save, show

from memfit.baselines.allocators import names, run
from memfit.files import load_events

DATA = ROOT.parent / "shared" / "data"
FILES = ("resnet50", "hist_bert_base", "hist_pangu_13B", "S_1", "G_1")
SNAPSHOTS = ("lm_ctx128_fullstep", "lm_medium_512_training", "vision_small")


def measure(path: Path) -> dict[str, Any]:
    """Return the figures of every allocator on the lifetimes in `path`."""
    events = load_events(path)
    outcomes = {name: run(name, events) for name in names()}
    return {
        "file": path.stem,
        "calls": len(events.steps),
        "peak_live_bytes": outcomes["none"].peak_live_bytes,
        "over_peak_percent": {name: round(100 * outcome.over_peak, 2) for name, outcome in outcomes.items()},
        "driver_allocations": {name: outcome.driver_allocations for name, outcome in outcomes.items()},
        "us_per_call": {name: round(outcome.us_per_call, 2) for name, outcome in outcomes.items()},
    }


def main() -> None:
    """Print the table and write results/allocators.json."""
    named = [DATA / "packing" / f"{name}.csv" for name in FILES] + [DATA / "snapshots" / f"{n}.csv" for n in SNAPSHOTS]
    paths = [Path(argument) for argument in sys.argv[1:]] or named
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise SystemExit(f"not there: {', '.join(missing)}; name files of lifetimes")
    results = [measure(path) for path in paths]
    rows = [[r["file"], *(f"{percent:+.2f}" for percent in r["over_peak_percent"].values())] for r in results]
    show("Footprint over the peak of live bytes, %", ("file", *names()), rows)
    save("allocators", results)


if __name__ == "__main__":
    main()
