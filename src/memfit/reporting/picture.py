"""The address-by-time picture: one rectangle a lifetime, time to the right, addresses upwards; as SVG.

What is under a pixel in a direction is merged with its neighbours there, so that a picture of twenty thousand
lifetimes stays small and readable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import numpy as np

from memfit.arrays import Int64Array
from memfit.reporting.svg import add_text, new_svg, svg_text
from memfit.units import format_bytes

_WIDTH, _HEIGHT = 1200, 640  # pixels of the plot
_LEFT, _TOP, _BELOW = 90, 40, 60  # around it
COLOURS = {
    "parameter": "#4e79a7",
    "gradient": "#f28e2b",
    "optimizer state": "#76b7b2",
    "activation": "#59a14f",
    "input": "#edc948",
    "scratch": "#b07aa1",
}
_OTHER = "#8c8c8c"


@dataclass(frozen=True, eq=False)
class PlacedLifetimes:
    """The drawn lifetimes: lifetime i has bytes [offset[i], offset[i] + size[i]) in [lower[i], upper[i]).

    With a `period` time is circular: a lifetime that runs over its end goes on at its beginning. `category` and `title`
    (the hover text) have an entry for each lifetime, or none at all.
    """

    lower: Int64Array
    upper: Int64Array
    size: Int64Array
    offset: Int64Array
    category: Sequence[str] = ()
    title: Sequence[str] = ()
    heading: str = "addresses by time"
    period: int | None = None


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle in pixels."""

    x0: float
    x1: float
    y0: float
    y1: float


def to_svg(placed: PlacedLifetimes) -> str:
    """Return the picture as an SVG document."""
    spans = _Spans.of(placed)
    root = new_svg(_WIDTH + _LEFT + 20, _HEIGHT + _TOP + _BELOW)
    add_text(root, _LEFT, 24, placed.heading, size=16)
    _frame(root, spans)
    for box, members in _merged(spans):
        _rectangle(root, box, members, placed)
    _peak(root, spans)
    _legend(root, placed)
    return svg_text(root)


@dataclass(frozen=True, eq=False)
class _Spans:
    """Spans of time that don't wrap, with the lifetime each belongs to, and the scales to pixels."""

    member: Int64Array
    begin: Int64Array
    end: Int64Array
    placed: PlacedLifetimes
    first: int
    last: int
    top: int

    @classmethod
    def of(cls, placed: PlacedLifetimes) -> _Spans:
        member = np.arange(len(placed.size))
        begin, end = placed.lower, placed.upper
        if placed.period is not None:
            member, begin, end = _unwrapped(begin, end, placed.period)
        top = int((placed.offset + placed.size).max(initial=1))
        return cls(member, begin, end, placed, int(begin.min(initial=0)), int(end.max(initial=1)), top)

    def boxes(self) -> Iterator[tuple[int, _Box]]:
        scale_x, scale_y = _WIDTH / max(self.last - self.first, 1), _HEIGHT / self.top
        bottom = _TOP + _HEIGHT
        for member, begin, end in zip(self.member.tolist(), self.begin.tolist(), self.end.tolist(), strict=True):
            offset, size = int(self.placed.offset[member]), int(self.placed.size[member])
            x0, x1 = (_LEFT + (t - self.first) * scale_x for t in (begin, end))
            yield member, _Box(x0, x1, bottom - (offset + size) * scale_y, bottom - offset * scale_y)

    def live(self) -> tuple[int, int]:
        """The time of the peak of live bytes, and the peak."""
        times = np.concatenate([self.end, self.begin])
        sizes = self.placed.size[self.member]
        order = np.argsort(times, kind="stable")  # at one time, ends come before beginnings
        live = np.cumsum(np.concatenate([-sizes, sizes])[order])
        return (int(times[order][live.argmax()]), int(live.max())) if len(live) else (0, 0)


def _unwrapped(lower: Int64Array, upper: Int64Array, period: int) -> tuple[Int64Array, Int64Array, Int64Array]:
    length, begin = upper - lower, lower % period
    begin = np.where(length >= period, 0, begin)
    over = begin + np.minimum(length, period) - period  # beyond the period's end, where positive
    rest = np.flatnonzero(over > 0)
    member = np.concatenate([np.arange(len(lower)), rest])
    end = begin + np.minimum(length, period) - np.maximum(over, 0)
    return member, np.concatenate([begin, np.zeros_like(rest)]), np.concatenate([end, over[rest]])


def _merged(spans: _Spans) -> Iterator[tuple[_Box, list[int]]]:
    """Yield boxes of at least a pixel each way, with the lifetimes in them."""
    groups: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for member, box in spans.boxes():
        x: tuple[float, ...] = (box.x0, box.x1) if box.x1 - box.x0 >= 1 else (float(int(box.x0)),)
        y: tuple[float, ...] = (box.y0, box.y1) if box.y1 - box.y0 >= 1 else (float(int(box.y0)),)
        if len(y) == 1 and len(x) == 2:
            x = (float(round(x[0])), float(round(x[1])))  # slivers of the same time lie on one another
        if len(x) == 1 and len(y) == 2:
            y = (float(round(y[0])), float(round(y[1])))
        groups[(len(x), *x, *y)].append(member)
    for (count, *ends), members in groups.items():
        across, upwards = ends[: int(count)], ends[int(count) :]
        x0, y0 = across[0], upwards[0]
        yield _Box(x0, max(across[-1], x0 + 1), y0, max(upwards[-1], y0 + 1)), members


def _rectangle(root: ElementTree.Element, box: _Box, members: list[int], placed: PlacedLifetimes) -> None:
    category = placed.category[max(members, key=lambda m: placed.size[m])] if placed.category else ""
    rectangle = ElementTree.SubElement(
        root, "rect", x=f"{box.x0:.2f}", y=f"{box.y0:.2f}", width=f"{box.x1 - box.x0:.2f}",
        height=f"{box.y1 - box.y0:.2f}", fill=COLOURS.get(category, _OTHER), stroke="white",
        attrib={"stroke-width": "0.3"},
    )  # fmt: skip
    ElementTree.SubElement(rectangle, "title").text = _title(members, placed)


def _title(members: list[int], placed: PlacedLifetimes) -> str:
    if len(members) > 1:
        return f"{len(members)} lifetimes, together {format_bytes(int(placed.size[members].sum()))}"
    (member,) = members
    where = f"{format_bytes(int(placed.size[member]))} at {int(placed.offset[member]):,}"
    return f"{placed.title[member]}: {where}" if placed.title else f"lifetime {member}: {where}"


def _frame(root: ElementTree.Element, spans: _Spans) -> None:
    ElementTree.SubElement(root, "rect", x=str(_LEFT), y=str(_TOP), width=str(_WIDTH), height=str(_HEIGHT),
                           fill="#f6f6f6", stroke="#999999")  # fmt: skip
    for part in range(5):
        y = _TOP + _HEIGHT - _HEIGHT * part / 4
        add_text(root, _LEFT - 6, y + 4, format_bytes(spans.top * part // 4), anchor="end")
    add_text(root, _LEFT, _TOP + _HEIGHT + 18, f"time {spans.first:,}")
    add_text(root, _LEFT + _WIDTH, _TOP + _HEIGHT + 18, f"{spans.last:,}", anchor="end")


def _peak(root: ElementTree.Element, spans: _Spans) -> None:
    time, peak = spans.live()
    x = _LEFT + (time - spans.first + 0.5) * _WIDTH / max(spans.last - spans.first, 1)
    y = _TOP + _HEIGHT - peak * _HEIGHT / spans.top
    for ends in ((x, x, _TOP, _TOP + _HEIGHT), (_LEFT, _LEFT + _WIDTH, y, y)):
        x1, x2, y1, y2 = (f"{end:.2f}" for end in ends)
        ElementTree.SubElement(root, "line", x1=x1, x2=x2, y1=y1, y2=y2, stroke="#d62728",
                               attrib={"stroke-dasharray": "5 4"})  # fmt: skip
    label = f"peak of live bytes {format_bytes(peak)}; footprint {format_bytes(spans.top)}"
    add_text(root, _LEFT + _WIDTH, 24, label, anchor="end")


def _legend(root: ElementTree.Element, placed: PlacedLifetimes) -> None:
    x = _LEFT
    for category in (c for c in COLOURS if c in set(placed.category)):
        y = _TOP + _HEIGHT + 34
        ElementTree.SubElement(root, "rect", x=str(x), y=str(y), width="12", height="12", fill=COLOURS[category])
        add_text(root, x + 18, y + 11, category)
        x += 40 + 8 * len(category)
