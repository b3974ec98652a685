"""Writes the table of conflicts in docs/trainers.md from the list that the callbacks use.

Usage: python -m tools.make_trainers
"""

from __future__ import annotations

from pathlib import Path

from memfit.integrations.conflicts import CONFLICTS

PAGE = Path(__file__).parents[1] / "docs" / "trainers.md"
BEGIN, END = "<!-- CONFLICTS -->\n", "<!-- END -->"


def page() -> str:
    """Return the page with the table as it should be."""
    rows = [
        f"| {conflict.what} | {conflict.why} | {conflict.remedy} | {'warning' if conflict.works else 'error'} |"
        for conflict in CONFLICTS
    ]
    table = "\n".join(["| what | why | what to do | |", "| --- | --- | --- | --- |", *rows])
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{table}\n\n{END}{rest.split(END, 1)[1]}"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
