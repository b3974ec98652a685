"""What memfit's own records take: bytes an op of an iteration, kept while a plan is in force, and the process's RSS."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from common import save, show

# A chain of tiny layers: thirteen ops for each, and next to no bytes, so that records are all there is to see.
_PROGRAM = """
import contextlib, json, sys, torch, memfit
from memfit.running.host import peak_rss_bytes
layers, steps, plain = map(int, sys.argv[1:])
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
rss = lambda: int(open("/proc/self/statm").read().split()[1]) * 4096
with contextlib.nullcontext() if plain else memfit.session(None) as session:
    for _ in range(steps):
        before = 0 if plain else session.stats.ops
        h = torch.randn(4, 8)
        for _ in range(layers):
            h = torch.tanh(layer(h))
        h.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    facts = {"rss": rss(), "peak_rss": peak_rss_bytes()}
    if not plain:
        stats = session.stats
        facts |= {"record_bytes": stats.record_bytes, "ops": stats.ops - before, "plans": stats.plans}
print(json.dumps(facts))
"""


def measure(layers: int, steps: int) -> dict[str, Any]:
    """Return what a program of `layers` layers takes with memfit, and how much more than without."""
    plain, governed = (_run(layers, steps, plain) for plain in (1, 0))
    more = {f"more_{name}": governed[name] - plain[name] for name in ("rss", "peak_rss")}
    per_op = governed["record_bytes"] / governed["ops"]
    return {"layers": layers, **governed, **more, "record_bytes_per_op": per_op}


def _run(layers: int, steps: int, plain: int) -> dict[str, Any]:
    command = [sys.executable, "-c", _PROGRAM, str(layers), str(steps), str(plain)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", nargs="*", type=int, default=[100, 1000, 5000])
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    rows = [measure(layers, args.steps) for layers in args.layers]
    columns = ["ops an iteration", "plans", "records (kB)", "bytes an op", "more RSS (MB)", "more peak RSS (MB)"]
    show("memfit's own records", columns, [line(row) for row in rows])
    save("records", rows)


def line(row: dict[str, Any]) -> list[str]:
    """Return one row of the printed table."""
    sizes = [f"{row['record_bytes'] / 1e3:.0f}", f"{row['record_bytes_per_op']:.0f}"]
    more = [f"{row[key] / 1e6:.0f}" for key in ("more_rss", "more_peak_rss")]
    return [f"{row['ops']:,}", str(row["plans"]), *sizes, *more]


if __name__ == "__main__":
    main()
