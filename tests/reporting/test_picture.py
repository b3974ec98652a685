from xml.etree import ElementTree

import numpy as np

from memfit.reporting.picture import PlacedLifetimes, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def placed(rows, **more):
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return PlacedLifetimes(*columns, **more)


def rectangles(svg):
    """The lifetimes' rectangles: those with a hover text."""
    root = ElementTree.fromstring(svg)
    return [(r, r.find(f"{SVG}title").text) for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]


def box(rectangle):
    return tuple(float(rectangle.get(key)) for key in ("x", "y", "width", "height"))


def texts(svg):
    return [t.text for t in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_rectangle_is_where_its_time_and_its_bytes_are():
    svg = to_svg(placed([(0, 5, 100, 0), (5, 10, 300, 100)]))
    (first, _), (second, _) = rectangles(svg)
    x, y, width, height = box(first)
    x2, y2, width2, height2 = box(second)
    assert width == width2 and x2 == x + width  # half the time each, one after the other
    assert height2 == 3 * height and y2 + height2 == y  # three times the bytes, right above


def test_the_peak_and_the_footprint_are_said_and_marked():
    svg = to_svg(placed([(0, 4, 1024, 0), (2, 6, 1024, 2048), (6, 8, 512, 0)]))
    assert "peak of live bytes 2.00 KiB; footprint 3.00 KiB" in texts(svg)
    lines = list(ElementTree.fromstring(svg).iter(f"{SVG}line"))
    assert len(lines) == 2
    upright = next(line for line in lines if line.get("x1") == line.get("x2"))
    (first, _), (second, _), _ = rectangles(svg)
    both = max(box(first)[0], box(second)[0]), box(first)[0] + box(first)[2]
    assert both[0] <= float(upright.get("x1")) <= both[1]


def test_an_end_and_a_beginning_at_one_time_are_not_live_together():
    assert any("peak of live bytes 1.00 KiB" in t for t in texts(to_svg(placed([(0, 2, 1024, 0), (2, 4, 1024, 0)]))))


def test_colours_tell_categories_and_hovering_tells_the_rest():
    rows = [(0, 4, 64, 0), (0, 4, 64, 64)]
    svg = to_svg(placed(rows, category=["parameter", "scratch"], title=["<w> & b", "aten::mm at net.py:3"]))
    (first, said), (second, more) = rectangles(svg)
    assert first.get("fill") != second.get("fill")
    assert said.startswith("<w> & b: 64 B at 0") and "net.py:3" in more
    assert {"parameter", "scratch"} <= set(texts(svg)) and "gradient" not in texts(svg)


def test_what_runs_over_the_period_s_end_goes_on_at_its_beginning():
    svg = to_svg(placed([(6, 12, 64, 0), (4, 6, 64, 0)], period=8))
    boxes = sorted(box(r) for r, _ in rectangles(svg))
    assert len(boxes) == 3
    assert boxes[0][0] + boxes[0][2] == boxes[1][0]  # [0, 4) and [4, 6)


def test_twenty_thousand_slivers_are_merged():
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 40_000, 20_000)
    small = np.stack([lower, lower + rng.integers(1, 30, 20_000), np.full(20_000, 64), lower % 400 * 64], axis=1)
    large = [[0, 20_000, 1 << 30, 1 << 20], [20_000, 40_030, 1 << 30, 1 << 20]]
    svg = to_svg(placed(np.concatenate([small, large])))
    drawn = rectangles(svg)
    assert len(drawn) < 2_500 and len(svg) < 1_000_000
    assert all(box(r)[2] >= 1 and box(r)[3] >= 1 for r, _ in drawn)
    counts = [int(t.split(" ")[0]) if "lifetimes, together" in t else 1 for _, t in drawn]
    assert sum(counts) == 20_002


def test_nothing_is_a_picture_too():
    assert rectangles(to_svg(placed([]))) == []
