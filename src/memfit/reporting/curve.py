"""The report of `memfit curve`: added time against memory, as plain data, SVG, or PNG if matplotlib is installed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

from memfit.errors import UsageError
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.planning.autoswap import plan_at_no_cost, plan_under_budget, smallest_budget
from memfit.simulate import load_bytes
from memfit.units import format_bytes, format_share

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 720, 400, 80, 50, 60  # pixels


@dataclass(frozen=True, slots=True)
class Point:
    """A budget (bytes) and the overhead of the plan found there, as a fraction of the computation."""

    budget_bytes: int
    overhead: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Points from the peak down. `free` is the least budget found at which nothing waits; none is below `least`."""

    machine: str
    peak_bytes: int
    least_bytes: int
    free: Point
    points: tuple[Point, ...]


def curve(trace: Trace, machine: Machine, *, points: int = 12, effort: float = 0.5) -> Curve:
    """Return the curve of `trace` at `points` budgets between its peak and its least; `effort` in seconds a point."""
    peak, least = int(load_bytes(trace).max()), smallest_budget(trace)[0]
    free_plan = plan_at_no_cost(trace, machine, effort=4 * effort)
    free = Point(free_plan.plan.budget_bytes, free_plan.timeline.overhead)
    steps = max(points - 1, 1)
    budgets = sorted({least + (peak - least) * step // steps for step in range(points)}, reverse=True)
    found = [_point(trace, machine, budget, effort) for budget in budgets]
    return Curve(machine.name, peak, least, free, tuple(_falling(found, free)))


def to_json(figures: Curve) -> str:
    """Return `figures` as a JSON object, with the names of the dataclasses' fields."""
    return json.dumps(asdict(figures), indent=2)


def summary(figures: Curve) -> str:
    """Return `figures` for a person."""
    share = 100 * (1 - figures.free.budget_bytes / figures.peak_bytes) if figures.peak_bytes else 0.0
    rows = [
        f"  {format_bytes(p.budget_bytes):>10}  {100 * p.budget_bytes / max(figures.peak_bytes, 1):5.1f} %  "
        f"{format_share(p.overhead):>10}"
        for p in figures.points
    ]
    free = f"nothing waits down to {format_bytes(figures.free.budget_bytes)} (-{share:.1f} %)"
    return "\n".join([f"on {figures.machine}, {free}", "      budget  of peak  added time", *rows])


def draw_curve(figures: Curve) -> str:
    """Return the curve as an SVG document: memory to the right, added time upwards, the free point marked."""
    root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(_WIDTH + _LEFT + 20),
                               height=str(_HEIGHT + _TOP + _BELOW), attrib={"font-family": "sans-serif"})  # fmt: skip
    top = max([point.overhead for point in figures.points] + [0.01])

    def at(point: Point) -> tuple[float, float]:
        x = _LEFT + _WIDTH * point.budget_bytes / max(figures.peak_bytes, 1)
        return x, _TOP + _HEIGHT * (1 - point.overhead / top)

    _text(root, _LEFT, 24, f"added time by memory, {figures.machine}", 16)
    _axes(root, figures, top)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, figures.points))
    ElementTree.SubElement(root, "polyline", points=path, fill="none", stroke="#4e79a7", attrib={"stroke-width": "2"})
    x, y = at(figures.free)
    ElementTree.SubElement(root, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", fill="#e15759")
    _text(root, x, y - 10, f"nothing waits: {format_bytes(figures.free.budget_bytes)}", 12)
    return ElementTree.tostring(root, encoding="unicode")


def png_canvas() -> Any:
    """Return an empty matplotlib canvas; raises UsageError without matplotlib."""
    try:
        agg, mpl = import_module("matplotlib.backends.backend_agg"), import_module("matplotlib.figure")
    except ImportError as error:
        why, remedy = "matplotlib is not installed", "pip install 'memfit[plots]', or --svg, which needs nothing"
        raise UsageError("no PNG can be drawn", why=why, remedy=remedy) from error
    return agg.FigureCanvasAgg(mpl.Figure(figsize=(8, 5)))


def save_png(figures: Curve, path: str, canvas: Any) -> None:
    """Draw the curve on `canvas` and write it to the PNG file `path`."""
    axes = canvas.figure.add_subplot()
    axes.plot([p.budget_bytes / 2**30 for p in figures.points], [100 * p.overhead for p in figures.points], marker=".")
    axes.plot([figures.free.budget_bytes / 2**30], [100 * figures.free.overhead], "o", label="nothing waits")
    axes.set(xlabel="memory, GiB", ylabel="added time, %", title=f"added time by memory, {figures.machine}")
    axes.legend()
    canvas.figure.savefig(path, format="png")


def _point(trace: Trace, machine: Machine, budget_bytes: int, effort: float) -> Point:
    return Point(budget_bytes, plan_under_budget(trace, machine, budget_bytes, effort=effort).timeline.overhead)


def _falling(points: Sequence[Point], free: Point) -> list[Point]:
    """Return the points with the best plan known for each: one for less memory serves for more."""
    falling: list[Point] = []
    best = float("inf")
    for point in reversed(points):
        known = [best, point.overhead, *([free.overhead] if free.budget_bytes <= point.budget_bytes else [])]
        best = min(known)
        falling.insert(0, Point(point.budget_bytes, best))
    return falling


def _axes(root: ElementTree.Element, figures: Curve, top: float) -> None:
    frame = {"x": str(_LEFT), "y": str(_TOP), "width": str(_WIDTH), "height": str(_HEIGHT)}
    ElementTree.SubElement(root, "rect", frame, fill="none", stroke="#8c8c8c")
    for share in (0, 25, 50, 75, 100):
        x = _LEFT + _WIDTH * share / 100
        _text(root, x - 20, _TOP + _HEIGHT + 20, format_bytes(figures.peak_bytes * share / 100), 12)
        _text(root, x - 12, _TOP + _HEIGHT + 38, f"{share} %", 12)
        _text(root, 8, _TOP + _HEIGHT * (1 - share / 100) + 4, f"{top * share:.1f} %", 12)


def _text(root: ElementTree.Element, x: float, y: float, text: str, size: int) -> None:
    element = ElementTree.SubElement(root, "text", x=f"{x:.1f}", y=f"{y:.1f}", attrib={"font-size": str(size)})
    element.text = text
