"""What a report costs: seconds to make, size, and how soon and smoothly Chromium shows it, from 1,000 to 50,000 ops."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn import functional

import memfit
from benchmarks.common.models import Decoder
from benchmarks.common.result import Result, Row, Table
from memfit.comparing.page import Asked, page_of
from memfit.machine import profile
from memfit.planning.floor import floor_of
from memfit.reporting.page import to_html
from memfit.simulate import load_bytes

SIZES = (1_000, 10_000, 50_000)
EFFORT = 0.1  # seconds of each search
_COLUMNS = ["ops", "rectangles", "plan and data", "write", "size", "ready in", "pointing", "keys"]
_TIMES = 40
# Notes the time between two frames.
_FRAMES = """() => { window.frames_ms = []; let last = performance.now();
  const next = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(next); };
  requestAnimationFrame(next); }"""


def decoder(layers: int) -> memfit.Trace:
    """Return an iteration of a GPT-2 of that many small layers, as an H100 would run it."""
    with torch.device("meta"):
        model, tokens = Decoder(layers, 256, 4, 128), torch.zeros((8, 128), dtype=torch.long)
        labels = torch.zeros((8 * 128,), dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(tokens), labels).backward()
        optimizer.step()

    return memfit.record_meta(step)


def layers_for(ops: int) -> int:
    """Return how many layers have about `ops` ops: each has as many as the third."""
    two, three = (len(decoder(layers).ops) for layers in (2, 3))
    return max(1, round((ops - two) / (three - two)) + 2)


def measure(ops: int, folder: Path, browser: Any) -> Row:
    """Make a report with a plan, and look at it; without a `browser` only its size and time are known."""
    trace = decoder(layers_for(ops))
    began = time.perf_counter()
    budget = (int(load_bytes(trace).max()) + floor_of(trace).budget_bytes) // 2
    page = page_of(trace, profile("pcie5"), file="trace.json", budget_bytes=budget, asked=Asked(effort=EFFORT))
    drawn = time.perf_counter()
    path = folder / f"{ops}.html"
    path.write_text(to_html(page), encoding="utf-8")
    row = {
        "ops": len(trace.ops), "boxes": len(page.boxes.storage), "page_s": drawn - began,
        "write_s": time.perf_counter() - drawn, "size_bytes": path.stat().st_size,
    }  # fmt: skip
    return row | (_looked_at(path, browser) if browser else {})


def _looked_at(path: Path, browser: Any) -> Row:
    seen = browser.new_page(viewport={"width": 1280, "height": 900})
    began = time.perf_counter()
    seen.goto(path.as_uri())
    seen.wait_for_selector("body[data-ready]", timeout=120_000)
    ready_s = time.perf_counter() - began
    seen.evaluate(_FRAMES)
    box = seen.locator("#memory .u-over").bounding_box()
    x, y, width = box["x"], box["y"] + 50, box["width"]
    pointing = _frames(seen, lambda number: seen.mouse.move(x + width * number / _TIMES, y))
    seen.focus("#addresses")
    keys = _frames(seen, lambda _: seen.keyboard.press("ArrowRight"))
    seen.close()
    return {"ready_s": ready_s, "frames": {"pointing": pointing, "keys": keys}}


def _frames(seen: Any, do: Callable[[int], None]) -> Row:
    seen.evaluate("window.frames_ms.length = 0")
    for number in range(_TIMES):
        do(number)
    found = seen.evaluate("window.frames_ms")
    return {"median_ms": median(found), "worst_ms": max(found)}


@contextmanager
def _browser() -> Iterator[Any]:
    """Open Chromium; without it, or without playwright, there is None."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])


def table(rows: Sequence[Row]) -> Table:
    """Return one row a size."""
    lines = []
    for row in rows:
        took = [f"{row[name]:.2f} s" for name in ("page_s", "write_s")]
        line = [f"{row['ops']:,}", f"{row['boxes']:,}", *took, f"{row['size_bytes'] / 1e6:.2f} MB"]
        if "ready_s" in row:
            frames = (row["frames"][name] for name in ("pointing", "keys"))
            line += [f"{row['ready_s']:.2f} s", *(f"{f['median_ms']:.0f} / {f['worst_ms']:.0f} ms" for f in frames)]
        lines.append(line + ["-"] * (len(_COLUMNS) - len(line)))
    return Table("Reports (frames: median / worst)", _COLUMNS, lines)


def run(*, sizes: Sequence[int] = SIZES) -> Iterator[Result]:
    """Make a report of each size, in ops, and look at it in Chromium, if that and playwright are there."""
    with TemporaryDirectory() as folder, _browser() as browser:
        rows = [measure(ops, Path(folder), browser) for ops in sizes]
    notes = [] if browser else ["there is no Chromium, or no playwright: reports were not looked at"]
    yield Result("report", rows, [table(rows)], notes)
