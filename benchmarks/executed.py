"""Plans that swap, executed: step time against the plain run, the reactive mode and the prediction, over a slow link.

The ram tier behind a link of a given speed, so that copies can be hidden and the figures do not hang on a disk. All
modes of an example run one after the other; steps of the last half count. `--link` in GB/s; by default it carries, in
the time of a plain step, a share of the bytes that the reactive mode moves.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from common import run_worker, save, show, step_seconds

# Ops long enough to time, and to hide copies under.
EXAMPLES: dict[str, list[str]] = {
    "vgg": ["--width", "32", "--batch", "64", "--eval-every", "0"],
    "resnet": ["--width", "32", "--batch", "64"],
    "decoder": ["--layers", "6", "--width", "256", "--batch", "8"],
    "unet": ["--width", "32", "--batch", "8"],
}
SHARE = 0.7  # of a plain step is what the link needs each way for what the reactive mode moves


def half(result: dict[str, Any]) -> float:
    """Return the median of the last half of the steps, in seconds."""
    seconds = step_seconds(result, 0)
    return statistics.median(seconds[len(seconds) // 2 :])


def moved_a_step(result: dict[str, Any]) -> int:
    """Return the bytes moved in the busier direction, in a late step."""
    before, after = result["steps"][-4], result["steps"][-2]
    return max((after[f"bytes_{way}"] - before[f"bytes_{way}"]) // 2 for way in ("out", "in"))


def compare(name: str, budget: str, steps: int, link: float | None, repeats: int) -> dict[str, Any]:
    arguments = [*EXAMPLES[name], "--steps", str(steps)]
    options: dict[str, Any] = {"threads": 1, "tier": "ram"}
    plain = half(run_worker(name, arguments, "plain", threads=1))
    if link is None:
        link = moved_a_step(run_worker(name, arguments, budget, plan=False, **options)) / (SHARE * plain) / 1e9
    options["link"] = link * 1e9
    runs: dict[str, list[dict[str, Any]]] = {"plain": [], "reactive": [], "planned": []}
    for _ in range(repeats):  # in turn, so that what disturbs one disturbs all
        runs["plain"].append(run_worker(name, arguments, "plain", threads=1))
        runs["reactive"].append(run_worker(name, arguments, budget, plan=False, **options))
        runs["planned"].append(run_worker(name, arguments, budget, plan=True, measures=True, **options))
    seconds = {mode: statistics.median(half(run) for run in done) for mode, done in runs.items()}
    planned = runs["planned"][-1]
    result = {"example": name, "budget": budget, "link_gb_per_s": link, "seconds": seconds}
    return result | {key: planned.get(key) for key in ("predicted_us", "compute_us", "measured_us", "stall_us", "swaps",
                                                        "predicted_stall_us", "plan_mismatches", "derailments", "plans",
                                                        "peak_footprint", "budget")}  # fmt: skip


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    s, predicted = row["seconds"], row["predicted_us"]
    cells = [row["example"], f"{row['link_gb_per_s']:.2f}", f"{1e3 * s['plain']:.0f}"]
    cells += [f"{s[mode] / s['plain']:.2f}x" for mode in ("reactive", "planned")]
    cells.append(f"{s['reactive'] / s['planned']:.2f}x")
    if predicted is None:
        return [*cells, "no plan", "", "", ""]
    error = predicted / 1e6 / s["planned"] - 1
    return [*cells, f"{predicted / 1e3:.0f}", f"{1e3 * s['planned']:.0f}", f"{100 * error:+.0f} %", str(row["swaps"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", nargs="*", default=list(EXAMPLES))
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--link", type=float)
    args = parser.parse_args()
    rows = [compare(name, args.budget, args.steps, args.link, args.repeats) for name in args.examples]
    columns = ["example", "link GB/s", "plain ms", "reactive", "planned", "reactive / planned", "predicted ms",
               "measured ms", "error", "swaps"]  # fmt: skip
    show(f"Executed at {args.budget} of the peak", columns, [line(row) for row in rows])
    save("executed", {"budget": args.budget, "examples": rows})


if __name__ == "__main__":
    main()
