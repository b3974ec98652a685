"""Fills the tables of README.md and docs/ from benchmarks/results/*.json; a table without results stays empty.

Usage: python docs/make_tables.py
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("measured.md", "smartpool.md", "packing.md", "allocators.md", "autoswap.md")),
)
SHARES = ("80%", "50%", "30%", "smallest")


def mb(size_bytes: float) -> str:
    """Return bytes in units of 10^6, with three digits."""
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 99.5e6 else f"{size_bytes / 1e6:.1f} MB"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def by_example(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each example, in the order of their first appearance."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["example"], []).append(row)
    return groups


def matrix(rows: list[dict[str, Any]]) -> list[str]:
    """Return one row an example: runs, hashes, how many runs were equal, how full the arena got."""
    lines = []
    for example, group in by_example(rows).items():
        ran = [row for row in group if not row.get("infeasible")]
        skipped = len(group) - len(ran)
        equal, held = (sum(row[key] for row in ran) for key in ("equal", "holds"))
        runs = f"{len(ran)}" + (f" ({skipped} infeasible)" if skipped else "")
        fullest = max(row["peak"] / row["budget"] for row in ran)
        hashes = f"{sum(row['hashes'] for row in ran):,}"
        lines.append([example, runs, hashes, f"{equal} of {len(ran)}", f"{held} of {len(ran)}", f"{fullest:.6f}"])
    head = ["example", "runs", "hashes compared", "all equal", "budget held", "highest arena peak / budget"]
    return table(head, lines)


def traffic(rows: list[dict[str, Any]]) -> list[str]:
    """Return one row an example with time and traffic at each budget."""

    def cell(row: dict[str, Any] | None) -> str:
        if row is None or row["error"]:
            return "infeasible" if row else ""
        moved = "nothing to move" if row["moved_ratio"] is None else f"{row['moved_ratio']:.2f}"
        share = f" at {row['budget'] / row['trace_peak']:.0%}" if row["share"] == "smallest" else ""
        return f"{row['time_ratio']:.2f}x ({moved}){share}"

    lines = []
    for example, group in by_example(rows).items():
        found = {row["share"]: row for row in group}
        lines.append([example, mb(group[0]["trace_peak"]), *(cell(found.get(share)) for share in SHARES)])
    return table(["example", "peak", *(f"{share} of it" for share in SHARES[:3]), "smallest + 3 %"], lines)


def how_low(rows: list[dict[str, Any]]) -> list[str]:
    """Return one row an example: peak, largest working set, smallest budget."""
    lines = []
    for row in rows:
        least = row["factor"] * row["working_set"] if row["factor"] else None
        tail = [mb(least), f"{row['factor']:.2f}", f"{least / row['trace_peak']:.0%}"] if least else ["", "> 1.25", ""]
        lines.append([row["example"], mb(row["trace_peak"]), mb(row["working_set"]), *tail])
    return table(["example", "peak", "largest working set", "smallest budget", "/ working set", "/ peak"], lines)


def rss(rows: list[dict[str, Any]]) -> list[str]:
    """Return one row an example: tensors, process, and what of the arena's saving the process shows."""
    keys = ("peak_live", "arena_peak", "plain_rss", "limited_rss")
    lines = [[row["example"], *(mb(row[key]) for key in keys), f"{row['saved_share']:.0%}", f"{row['time_ratio']:.2f}x"]
             for row in rows]  # fmt: skip
    head = ["example", "peak of tensors", "arena peak", "RSS, plain", "RSS, in budget", "RSS / arena saved", "time"]
    return table(head, lines)


def overhead(data: dict[str, Any]) -> list[str]:
    """Return the cost of an op and of a decoder's step."""
    plain, added, ratios = (data[key] for key in ("plain_us", "added_us", "decoder_ratios"))
    middle = statistics.median
    per_op = [f"{middle(plain):.2f} us", f"+{middle(added):.2f} us", f"{min(added):.2f} to {max(added):.2f} us"]
    step = ["1", f"{middle(ratios):.3f}x", f"{min(ratios):.3f} to {max(ratios):.3f}"]
    return table(["", "plain", "attached (median)", "range"], [["one tiny op", *per_op], ["decoder step", *step]])


def planned(data: dict[str, Any]) -> list[str]:
    """Return one row an example trained from a plan."""
    lines = []
    for row in data["examples"]:
        real, plan = row["peak_footprint"], row["planned_footprint"]
        lines.append([row["example"], mb(plan), mb(real), f"{real / row['peak_live']:.4f}",
                      f"{row['planned_allocations']:,}", f"{row['plan_mismatches']:,}",
                      "equal" if row["equal"] else "different"])  # fmt: skip
    head = ["example", "plan", "arena", "arena / peak live", "planned allocations", "mismatches", "bits"]
    return table(head, lines)


def executed(data: dict[str, Any]) -> list[str]:
    """Return one row an example run over a slow link: plain, reactive, planned, and what was foreseen."""
    lines = []
    for row in data["examples"]:
        s = row["seconds"]
        cells = [row["example"], f"{row['link_gb_per_s']:.2f} GB/s", f"{1e3 * s['plain']:.0f} ms"]
        cells += [f"{s[mode] / s['plain']:.2f}x" for mode in ("reactive", "planned")]
        cells.append(f"{s['reactive'] / s['planned']:.2f}")
        if row["predicted_us"] is None:
            lines.append([*cells, "no plan", ""])
            continue
        error = row["predicted_us"] / 1e6 / s["planned"] - 1
        lines.append([*cells, f"{row['predicted_us'] / 1e3:.0f} ms ({error:+.0%})", f"{row['swaps']}"])
    head = [f"example at {data['budget']}", "link", "plain step", "reactive", "planned", "reactive / planned",
            "foreseen", "swaps"]  # fmt: skip
    return table(head, lines)


def packing(data: dict[str, Any]) -> list[str]:
    """Return one row a file: ours and omnimalloc's two, gaps over the peak of live bytes, seconds and their ratios."""

    def cell(result: dict[str, Any] | None, bound: int) -> str:
        if result is None:
            return ""
        proven = ", proven" if result.get("proven") else ""
        return f"{result['footprint'] / bound - 1:.4%} in {result['seconds']:.4f} s{proven}"

    def ratio(result: dict[str, Any] | None) -> str:
        if result is None:
            return ""
        level = result["level_ratio"]
        return f"{'never' if level is None else f'{level:.2f}'}, {result['all_ratio']:.2f}"

    lines = []
    for row in data["files"]:
        results = [cell(row[kind], row["peak_live"]) for kind in ("greedy", "ours", "supermalloc", "omni")]
        ratios = [ratio(row[kind]) for kind in ("supermalloc", "omni")]
        lines.append([row["name"], f"{row['lifetimes']:,}", *results, *ratios])
    head = ["lifetimes of", "n", "greedy alone", "memfit", "supermalloc", "omni"]
    return table(head + ["time / supermalloc's", "time / omni's"], lines)


def allocators(data: list[dict[str, Any]]) -> list[str]:
    """Return one row a file: how much each allocator reserves over the peak of live bytes."""
    names = [name for name in data[0]["over_peak_percent"] if name not in ("memfit 16 B", "memfit 256 B")]
    lines = [[row["file"], *(f"{row['over_peak_percent'][name]:.2f}" for name in names)] for row in data]
    return table(["%", *names], lines)


def peers(data: list[dict[str, Any]]) -> list[str]:
    """Return one row a model: the added time of memfit's plan and of the best of the others, at each budget."""

    def best(cells: list[dict[str, Any]]) -> str:
        feasible = [cell for cell in cells if cell["overhead"] is not None]
        if not feasible:
            return "none"
        least = min(feasible, key=lambda cell: cell["overhead"])
        return f"{max(least['overhead'], 0.0):.2%} ({least['policy']})"

    lines = []
    for model in data:
        budgets = sorted({cell["budget_bytes"] for cell in model["cells"]}, reverse=True)
        row = [model["name"], f"{model['peak_bytes'] / 1e9:.1f} GB"]
        for budget in budgets:
            cells = [cell for cell in model["cells"] if cell["budget_bytes"] == budget]
            ours = [cell for cell in cells if cell["policy"] == "memfit"]
            row.append(f"{best(ours).split(' ')[0]}, {best([cell for cell in cells if cell not in ours])}")
        (low,) = [cell for cell in model["smallest"] if cell["policy"] == "memfit"]
        row.append(f"{low['overhead']:.1%} at {low['budget_bytes'] / model['peak_bytes']:.0%}")
        lines.append(row)
    return table(["model", "peak", "80 %: memfit, best other", "60 %", "40 %", "memfit's smallest"], lines)


def planning(data: dict[str, Any]) -> list[str]:
    """Return how long planning and simulating took, beside what they may take."""
    speed = data["speed"]
    ops = f"{speed['ops']:,} ops"
    return table(["", "took", "bar"], [
        [f"planning {ops}, {speed['candidates']:,} candidates", f"{speed['planning_seconds']:.1f} s", "5 s"],
        [f"simulating {ops}, {speed['swaps']:,} swaps", f"{speed['simulation_ms']:.2f} ms", "1 ms"],
    ])  # fmt: skip


def checks(data: dict[str, Any]) -> list[str]:
    """Return what hashing cost: each example's budgets, as a share of the step."""
    budgets = list(dict.fromkeys(row["budget"] for row in data["rows"]))
    lines = []
    for example, rows in by_example(data["rows"]).items():
        cells = {row["budget"]: f"{row['check_seconds'] / row['seconds']:.2%}" for row in rows}
        speed = sum(row["bytes_checked"] for row in rows) / sum(row["check_seconds"] for row in rows) / 1e9
        lines.append([example, *(cells.get(budget, "infeasible") for budget in budgets), f"{speed:.1f} GB/s"])
    return table(["example", *budgets, f"hashed at (memory is read at {data['memory_gb_per_s']:.0f} GB/s)"], lines)


def records(data: list[dict[str, Any]]) -> list[str]:
    """Return the bytes of memfit's own records for each length of the iteration."""
    return table(["ops of an iteration", "kept, an op", "RSS over the plain run's, at the end", "at its peak"], [
        [f"{row['ops']:,}", f"{row['record_bytes_per_op']:.0f} B", mb(row["more_rss"]), mb(row["more_peak_rss"])]
        for row in data
    ])  # fmt: skip


def versions(data: dict[str, Any]) -> list[str]:
    """Return the ratio of the step times for each example and budget, with its range."""
    budgets = list(dict.fromkeys(row["budget"] for row in data["cells"]))
    lines = []
    for example, rows in by_example(data["cells"]).items():
        cells = {r["budget"]: (statistics.median(r["ratios"]), min(r["ratios"]), max(r["ratios"])) for r in rows}
        found = [cells.get(budget) for budget in budgets]
        lines.append([example, *("" if c is None else f"x{c[0]:.2f} ({c[1]:.2f} to {c[2]:.2f})" for c in found)])
    return table(["example", *("attached" if isinstance(b, int) else b for b in budgets)], lines)


def instructions(data: dict[str, Any]) -> list[str]:
    """Return what callgrind counted for a tiny op in a session of either version."""
    before, after = data["counts"]
    row = ["instructions of a tiny add", f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.3f}"]
    return table(["", "before", "after", "ratio"], [row])


TABLES: dict[str, Callable[[Any], list[str]]] = {
    "matrix": matrix, "traffic": traffic, "how_low": how_low, "rss": rss, "overhead": overhead, "planned": planned,
    "executed": executed, "packing": packing,
    "allocators": allocators, "peers": peers, "swapping": planning, "checks": checks, "records": records,
    "versions": versions, "instructions": instructions,
}  # fmt: skip


def main() -> None:
    """Rewrite what lies between the markers in PAGES."""
    for page in PAGES:
        text = page.read_text()
        for name, make in TABLES.items():
            begin, end = f"<!-- TABLE:{name} -->", f"<!-- END:{name} -->"
            if begin not in text:
                continue
            source = ROOT / "benchmarks" / "results" / f"{name}.json"
            lines = make(json.loads(source.read_text())) if source.exists() else []
            filled = "\n".join([begin, "", *lines, "", end] if lines else [begin, end])
            text = re.sub(f"{begin}.*?{end}", lambda _, new=filled: new, text, flags=re.DOTALL)
            print(f"{name}: {'filled' if lines else 'no results yet'}")
        page.write_text(text)


if __name__ == "__main__":
    main()
