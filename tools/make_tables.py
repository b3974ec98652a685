"""Fills the tables of README.md and docs/ from benchmarks/results/*.json; a table without results stays empty.

Usage: python -m tools.make_tables
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from benchmarks.common.paths import RESULTS, ROOT
from benchmarks.common.result import Table
from benchmarks.cpu import (
    checks,
    compiled,
    compression,
    distributed,
    executed,
    how_low,
    inference,
    mapping,
    matrix,
    moves,
    overhead,
    planned,
    records,
    replans,
    rss,
    splitting,
    staying,
    tables,
    traffic,
    versions,
)
from benchmarks.gpu import calibration, simulated, simulated_kinds
from benchmarks.offline import (
    allocators,
    bounds,
    first_plan,
    in_place,
    managed,
    packing,
    page_faults,
    peers,
    pieces,
    recomputing,
    report,
    swapping,
    whatif_with,
)
from tools.pages import with_part

PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
TABLES: dict[str, Callable[[Any], Table]] = {
    "allocators": allocators.table,
    "bounds": bounds.table,
    "checkpoints": moves.checkpoint_table,
    "checks": checks.table,
    "compiled": compiled.table,
    "compiled_calls": compiled.call_table,
    "compiled_kept": compiled.kept_table,
    "compression": compression.share_table,
    "compression_steps": compression.time_table,
    "distributed": distributed.table,
    "executed": executed.table,
    "first_plan": first_plan.table,
    "how_low": how_low.table,
    "in_place": in_place.table,
    "inference": inference.table,
    "pieces": pieces.table,
    "instructions": versions.instructions_table,
    "managed": managed.table,
    "mapping": mapping.table,
    "matrix": matrix.table,
    "moves": moves.table,
    "overhead": overhead.table,
    "packing": packing.table,
    "page_faults": page_faults.table,
    "peers": peers.table,
    "planned": planned.table,
    "recomputing": recomputing.table,
    "records": records.table,
    "replans": replans.table,
    "report": report.table,
    "rss": rss.table,
    "simulated_gpu": simulated.table,
    "simulated_kinds": simulated_kinds.table,
    "calibration": calibration.table,
    "splitting": splitting.table,
    "splitting_loss": splitting.table_of_loss,
    "staying": staying.table,
    "swapping": swapping.table,
    "tables": tables.table,
    "traffic": traffic.table,
    "versions": versions.table,
    "whatif_with": whatif_with.table,
}


def markdown(table: Table) -> str:
    """Return the table in Markdown, without its title."""
    lines = (table.columns, ["---"] * len(table.columns), *table.rows)
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def made(name: str) -> str:
    """Return the table of the results `name`; empty without results."""
    source = RESULTS / f"{name}.json"
    return markdown(TABLES[name](json.loads(source.read_text()))) if source.exists() else ""


def filled(text: str) -> str:
    """Return a page's text with what lies between each table's markers made anew."""
    for name in TABLES:
        begin, end = f"<!-- TABLE:{name} -->", f"<!-- END:{name} -->"
        if begin in text:
            table = made(name)
            text = with_part(text, begin, end, table)
            print(f"{name}: {'filled' if table else 'no results yet'}")
    return text


def main() -> None:
    """Rewrite the pages."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
