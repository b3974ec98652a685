"""What memfit's own records take: bytes an op of an iteration, kept while a plan is in force, and the process's RSS."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

from benchmarks.common.examples import check_output
from benchmarks.common.result import Result, Row, Table, mb

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


def measure(layers: int, steps: int) -> Row:
    """Return what a program of `layers` layers takes with memfit, and how much more than without; sizes in bytes."""
    plain, governed = (
        json.loads(check_output([sys.executable, "-c", _PROGRAM, str(layers), str(steps), plain])) for plain in "10"
    )
    more = {f"more_{name}": governed[name] - plain[name] for name in ("rss", "peak_rss")}
    return {"layers": layers, **governed, **more, "record_bytes_per_op": governed["record_bytes"] / governed["ops"]}


def table(rows: list[Row]) -> Table:
    """Return the bytes of memfit's own records for each length of the iteration."""
    lines = [[f"{row['ops']:,}", f"{row['record_bytes_per_op']:.0f} B", mb(row["more_rss"]), mb(row["more_peak_rss"])]
             for row in rows]  # fmt: skip
    columns = ["ops of an iteration", "kept, an op", "RSS over the plain run's, at the end", "at its peak"]
    return Table("memfit's own records", columns, lines)


def run(*, layers: Sequence[int] = (100, 1000, 5000), steps: int = 12) -> Iterator[Result]:
    """Measure programs of each length."""
    rows = [measure(count, steps) for count in layers]
    yield Result("records", rows, [table(rows)])
