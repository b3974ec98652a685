"""The report of `memfit curve`: added time against memory; drawn as SVG, or as PNG where matplotlib is there."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any
from xml.etree import ElementTree

from memfit.errors import UsageError
from memfit.reporting.svg import add_text, new_svg, svg_text
from memfit.units import format_bytes, format_share

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 720, 400, 80, 50, 60  # pixels


@dataclass(frozen=True, slots=True)
class Point:
    """A budget (bytes) and the overhead of the plan found there, as a fraction of the computation."""

    budget_bytes: int
    overhead: float


@dataclass(frozen=True, slots=True)
class Curve:
    """Points from the peak down: plans that swap and recompute, and, at the same budgets, plans that only swap.

    `free` is the least budget found at which nothing waits, and nothing runs again; none is below `least`.
    """

    machine: str
    peak_bytes: int
    least_bytes: int
    free: Point
    points: tuple[Point, ...]
    swaps_alone: tuple[Point, ...]


def to_text(figures: Curve) -> str:
    """Return `figures` for a person."""
    share = 100 * (1 - figures.free.budget_bytes / figures.peak_bytes) if figures.peak_bytes else 0.0
    rows = [
        f"  {format_bytes(p.budget_bytes):>10}  {100 * p.budget_bytes / max(figures.peak_bytes, 1):5.1f} %  "
        f"{format_share(p.overhead):>10}  {format_share(alone.overhead):>11}"
        for p, alone in zip(figures.points, figures.swaps_alone, strict=True)
    ]
    free = f"nothing waits down to {format_bytes(figures.free.budget_bytes)} (-{share:.1f} %)"
    return "\n".join([f"on {figures.machine}, {free}", "      budget  of peak  added time  swaps alone", *rows])


def to_svg(figures: Curve) -> str:
    """Return the curve as an SVG document: memory to the right, added time upwards, the free point marked.

    The dashed line is of swaps alone, as far as it is in the picture.
    """
    root = new_svg(_WIDTH + _LEFT + 20, _HEIGHT + _TOP + _BELOW)
    top = max([point.overhead for point in figures.points] + [0.01])

    def at(point: Point) -> tuple[float, float]:
        x = _LEFT + _WIDTH * point.budget_bytes / max(figures.peak_bytes, 1)
        return x, _TOP + _HEIGHT * (1 - point.overhead / top)

    add_text(root, _LEFT, 24, f"added time by memory, {figures.machine}", size=16)
    _axes(root, figures, top)
    _line(root, [at(point) for point in figures.swaps_alone if point.overhead <= top], {"stroke-dasharray": "4 4"})
    _line(root, [at(point) for point in figures.points], {"stroke-width": "2"})
    x, y = at(figures.free)
    ElementTree.SubElement(root, "circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r="5", fill="#e15759")
    add_text(root, x, y - 10, f"nothing waits: {format_bytes(figures.free.budget_bytes)}")
    return svg_text(root)


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
    memory = [p.budget_bytes / 2**30 for p in figures.points]
    top = 100 * max((p.overhead for p in figures.points), default=0.0)
    axes.plot(memory, [100 * p.overhead for p in figures.points], marker=".", label="swaps and recomputation")
    axes.plot(memory, [100 * p.overhead for p in figures.swaps_alone], "--", label="swaps alone")
    axes.set_ylim(0, 1.1 * max(top, 1.0))  # swaps alone may be many times as slow
    axes.plot([figures.free.budget_bytes / 2**30], [100 * figures.free.overhead], "o", label="nothing waits")
    axes.set(xlabel="memory, GiB", ylabel="added time, %", title=f"added time by memory, {figures.machine}")
    axes.legend()
    canvas.figure.savefig(path, format="png")


def _line(root: ElementTree.Element, corners: list[tuple[float, float]], style: dict[str, str]) -> None:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    ElementTree.SubElement(root, "polyline", points=path, fill="none", stroke="#4e79a7", attrib=style)


def _axes(root: ElementTree.Element, figures: Curve, top: float) -> None:
    frame = {"x": str(_LEFT), "y": str(_TOP), "width": str(_WIDTH), "height": str(_HEIGHT)}
    ElementTree.SubElement(root, "rect", frame, fill="none", stroke="#8c8c8c")
    for share in (0, 25, 50, 75, 100):
        x = _LEFT + _WIDTH * share / 100
        add_text(root, x - 20, _TOP + _HEIGHT + 20, format_bytes(figures.peak_bytes * share / 100))
        add_text(root, x - 12, _TOP + _HEIGHT + 38, f"{share} %")
        add_text(root, 8, _TOP + _HEIGHT * (1 - share / 100) + 4, f"{top * share:.1f} %")
