"""An iteration, a plan or a session at a glance: one line for a terminal, a few figures and a picture for a notebook.

A notebook's own colours are kept, dark or light, and nothing that came from a script is markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from memfit.arrays import Int64Array
from memfit.reporting.picture import COLOURS
from memfit.reporting.svg import add_text, new_svg, svg_text
from memfit.units import format_bytes

_WIDTH, _HEIGHT, _LEFT, _TOP, _BELOW = 640, 150, 70, 12, 20  # pixels

_HTML = """<div style="font-family: system-ui, sans-serif; max-width: 46em">
<div style="font-weight: 600">{{ glance.title }}</div>
<table style="border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 4px 0">
{% for label, value in glance.rows %}
<tr><td style="text-align: left; opacity: 0.7; padding: 1px 14px 1px 0">{{ label }}</td>\
<td style="text-align: left; padding: 1px 0">{{ value }}</td></tr>
{% endfor %}
</table>
{% if picture %}
{{ picture }}
<div style="font-size: 12px">
{% for name, colour in legend %}
<span style="white-space: nowrap; margin-right: 12px">\
<span style="display: inline-block; width: 10px; height: 10px; background: {{ colour }}"></span> {{ name }}</span>
{% endfor %}
</div>
{% endif %}
</div>
"""


@dataclass(frozen=True, slots=True, eq=False)
class Glance:
    """What is shown: a title, figures with their labels, and for a picture the bytes live in each op, by category."""

    title: str
    rows: tuple[tuple[str, str], ...]
    live: Mapping[str, Int64Array] = field(default_factory=dict)


def to_text(glance: Glance) -> str:
    """Return `glance` as lines for a terminal: the title, then a figure each."""
    width = max((len(label) for label, _ in glance.rows), default=0)
    return "\n".join([glance.title, *(f"  {label:<{width}}  {value}" for label, value in glance.rows)])


def to_html(glance: Glance) -> str:
    """Return `glance` as a piece of HTML, without scripts and without anything to load."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    picture = Markup(_svg(glance.live)) if glance.live else ""  # noqa: S704 (of numbers and our own words)
    legend = [(name, COLOURS[name]) for name in glance.live]
    return environment.from_string(_HTML).render(glance=glance, picture=picture, legend=legend)


def _svg(live: Mapping[str, Int64Array]) -> str:
    """Draw the bytes live in each op, one category on another."""
    root = new_svg(_WIDTH, _HEIGHT + _BELOW)
    root.set("viewBox", f"0 0 {_WIDTH} {_HEIGHT + _BELOW}")
    root.set("style", "max-width: 100%; height: auto")
    root.set("fill", "currentColor")
    rows = _columns(np.stack(list(live.values())))
    top = max(int(rows.sum(axis=0).max()), 1)
    below = np.zeros(rows.shape[1], dtype=np.int64)
    for name, row in zip(live, rows, strict=True):
        _area(root, name, below, below + row, top)
        below = below + row
    _axes(root, top, len(next(iter(live.values()))))
    return svg_text(root)


def _columns(rows: Int64Array) -> Int64Array:
    """Return a column for each pixel: that of the op with the most bytes there."""
    count = min(rows.shape[1], _WIDTH - _LEFT)
    edges = np.linspace(0, rows.shape[1], count + 1).astype(np.int64)
    total = rows.sum(axis=0)
    fullest = [begin + int(total[begin:end].argmax()) for begin, end in zip(edges, edges[1:], strict=False)]
    return rows[:, fullest]


def _area(root: ElementTree.Element, name: str, below: Int64Array, above: Int64Array, top: int) -> None:
    there = [*_steps(above, top), *reversed(list(_steps(below, top)))]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in there)
    area = ElementTree.SubElement(root, "polygon", points=points, fill=COLOURS[name])
    ElementTree.SubElement(area, "title").text = f"{name}, at most {format_bytes(int((above - below).max()))}"


def _steps(heights: Int64Array, top: int) -> Iterator[tuple[float, float]]:
    width = (_WIDTH - _LEFT) / len(heights)
    for column, height in enumerate(heights.tolist()):
        y = _HEIGHT - (_HEIGHT - _TOP) * height / top
        yield _LEFT + column * width, y
        yield _LEFT + (column + 1) * width, y


def _axes(root: ElementTree.Element, top: int, ops: int) -> None:
    for y, size_bytes in ((_HEIGHT, 0), (_TOP, top)):
        ElementTree.SubElement(root, "line", x1=str(_LEFT), x2=str(_WIDTH), y1=str(y), y2=str(y),
                               stroke="currentColor", attrib={"stroke-opacity": "0.4"})  # fmt: skip
        add_text(root, _LEFT - 6, y + 4, format_bytes(size_bytes), anchor="end", size=11)
    add_text(root, _LEFT, _HEIGHT + 15, "op 0", size=11)
    add_text(root, _WIDTH, _HEIGHT + 15, f"{ops:,}", anchor="end", size=11)
