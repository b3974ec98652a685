"""The beginnings of an SVG document."""

from __future__ import annotations

from xml.etree import ElementTree


def new_svg(width: int, height: int) -> ElementTree.Element:
    """Return an empty document of this size, in pixels."""
    attributes = {"xmlns": "http://www.w3.org/2000/svg", "width": str(width), "height": str(height)}
    return ElementTree.Element("svg", attributes | {"font-family": "sans-serif"})


def add_text(
    root: ElementTree.Element, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12
) -> None:
    """Write `text` with its baseline at (x, y) in pixels."""
    attributes = {"text-anchor": anchor, "font-size": str(size)}
    ElementTree.SubElement(root, "text", attributes, x=f"{x:.1f}", y=f"{y:.1f}").text = text


def svg_text(root: ElementTree.Element) -> str:
    """Return the document as text."""
    return ElementTree.tostring(root, encoding="unicode")
