"""Where things are: this checkout, its results, and the data folder of public measurements."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TRACES = ROOT / "benchmarks" / "traces"
DATA = Path(os.environ.get("MEMFIT_DATA", ROOT.parent / "shared" / "data"))
"""Not part of this repository; MEMFIT_DATA says where it is if it does not lie beside the checkout."""


def lifetime_files() -> list[Path]:
    """Return the tables of lifetimes in the data folder; none if it is absent."""
    return sorted([*(DATA / "packing").glob("*.csv"), *(DATA / "snapshots").glob("*.csv")])


def paper_file(name: str) -> Path:
    """Return a file of the paper's published traces; ends the program if it is absent."""
    path = DATA / "paper" / name
    if not path.exists():
        raise SystemExit(f"{path} is not there: MEMFIT_DATA names the folder that holds paper/{name}")
    return path


def paper_mallocs(net: str) -> Path:
    """Return the published mallocs and frees of a net, trained on CIFAR-10 at batch 100."""
    return paper_file(f"cifar10_{net}_b100_mallocs.csv")
