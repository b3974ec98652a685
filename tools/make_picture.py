"""Draws residency.svg: the places of each storage's bytes during one training iteration.

Usage: python -m tools.make_picture > docs/residency.svg
"""

from __future__ import annotations

from dataclasses import dataclass, field

WIDTH, LEFT, RIGHT = 960, 122, 936
LIVE_TOP, LIVE_BOTTOM = 62, 146
ARENA_TOP, ARENA_BOTTOM = 186, 366
TIER_TOP, TIER_BOTTOM = 420, 516
HEIGHT = 580
BUDGET = 10  # units of memory
LIVE_MAX = 22

INK, MUTED, PAPER, PANEL = "#24292f", "#656d76", "#ffffff", "#f6f8fa"
COLOURS = {"parameter": "#3b6fb6", "activation": "#d9822b", "gradient": "#3f8f5b", "optimizer state": "#8059a8"}
PHASES = (("forward", 0, 44), ("backward", 44, 82), ("optimizer", 82, 100))


@dataclass
class Storage:
    """One storage: its lifetime, and its (begin, end, lowest address) wherever its bytes are."""

    name: str
    category: str
    size: int
    alive: tuple[float, float]
    arena: list[tuple[float, float, int]]
    tier: list[tuple[float, float, int]] = field(default_factory=list)


STORAGES = (
    Storage("W", "parameter", 3, (0, 100), [(0, 24, 0), (56, 70, 0), (84, 100, 4)], [(24, 90, 7)]),
    Storage("A", "activation", 4, (6, 79), [(6, 44, 3), (66, 79, 6)], [(44, 79, 3)]),
    Storage("B", "activation", 3, (14, 61), [(14, 61, 7)]),
    Storage("C", "activation", 3, (24, 53), [(24, 53, 0)]),
    Storage("D", "gradient", 4, (44, 64), [(44, 64, 3)]),
    Storage("G", "gradient", 4, (70, 100), [(70, 100, 0)]),
    Storage("M", "optimizer state", 3, (0, 100), [(84, 100, 7)], [(0, 90, 0)]),
)
# (time, address in the arena and in the tier, whether bytes leave the arena)
MOVES = ((24, 0.7, 8.5, True), (44, 4, 5, True), (56, 0.7, 8.5, False), (66, 7.2, 5, False),
         (84, 5, 8.5, False), (86.5, 8, 1.5, False))  # fmt: skip


def x(time: float) -> float:
    """Return the abscissa of a time, 0 to 100."""
    return LEFT + (RIGHT - LEFT) * time / 100


def y(units: float, top: int, bottom: int, most: float = BUDGET) -> float:
    """Return the ordinate of an address or amount in the panel from `top` to `bottom`."""
    return bottom - (bottom - top) * units / most


def text(at_x: float, at_y: float, words: str, size: int = 13, colour: str = INK, more: str = "") -> str:
    """Return a line of text; `more` holds further attributes."""
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}" font-size="{size}" fill="{colour}" {more}>{words}</text>'


def panel(top: int, bottom: int, name: str, note: str) -> list[str]:
    """Return the background of one panel with its name at the left."""
    middle = (top + bottom) / 2
    return [
        f'<rect x="{LEFT}" y="{top}" width="{RIGHT - LEFT}" height="{bottom - top}" fill="{PANEL}"/>',
        text(LEFT - 14, middle - 2, name, 15, INK, 'text-anchor="end" font-weight="bold"'),
        text(LEFT - 14, middle + 16, note, 12, MUTED, 'text-anchor="end"'),
    ]


def bars(storage: Storage) -> list[str]:
    """Return one rectangle for each stay of the storage, faint in the tier."""
    drawn = []
    places = ((storage.arena, ARENA_TOP, ARENA_BOTTOM, 1.0), (storage.tier, TIER_TOP, TIER_BOTTOM, 0.6))
    for stays, top, bottom, opacity in places:
        for begin, end, low in stays:
            upper, lower = (y(low + part, top, bottom) for part in (storage.size, 0))
            drawn.append(
                f'<rect x="{x(begin) + 1:.1f}" y="{upper + 1:.1f}" width="{x(end) - x(begin) - 2:.1f}" '
                f'height="{lower - upper - 2:.1f}" rx="4" fill="{COLOURS[storage.category]}" fill-opacity="{opacity}"/>'
            )
            drawn.append(text(x(begin) + 38, (upper + lower) / 2 + 5, storage.name, 14, PAPER, 'font-weight="bold"'))
    return drawn


def arrow(time: float, arena_at: float, tier_at: float, leaves: bool) -> list[str]:
    """Return an arrow between arena and tier, with a light rim so that it shows on every colour."""
    arena_end = (x(time) + (-7 if leaves else 9), y(arena_at, ARENA_TOP, ARENA_BOTTOM))
    tier_end = (x(time) + 9, y(tier_at, TIER_TOP, TIER_BOTTOM))
    start, stop = (arena_end, tier_end) if leaves else (tier_end, arena_end)
    path = f"M{start[0]:.1f} {start[1]:.1f} L{stop[0]:.1f} {stop[1]:.1f}"
    return [
        f'<path d="{path}" stroke="{PAPER}" stroke-width="6" stroke-linecap="round"/>',
        f'<circle cx="{start[0]:.1f}" cy="{start[1]:.1f}" r="3" fill="{INK}"/>',
        f'<path d="{path}" stroke="{INK}" stroke-width="2.2" marker-end="url(#head)"/>',
    ]


def live_line() -> list[str]:
    """Return the live bytes over time, with the budget as a dashed line."""
    times = sorted({time for storage in STORAGES for time in storage.alive})
    points = []
    for begin, end in zip(times, times[1:], strict=False):
        live = sum(s.size for s in STORAGES if s.alive[0] <= begin < s.alive[1])
        height = y(live, LIVE_TOP, LIVE_BOTTOM, LIVE_MAX)
        points += [f"{x(begin):.1f},{height:.1f}", f"{x(end):.1f},{height:.1f}"]
    budget = y(BUDGET, LIVE_TOP, LIVE_BOTTOM, LIVE_MAX)
    shape = f"{LEFT},{LIVE_BOTTOM} {' '.join(points)} {RIGHT},{LIVE_BOTTOM}"
    return [
        f'<polygon points="{shape}" fill="#d0d7de"/>',
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{MUTED}" stroke-width="1.5"/>',
        f'<path d="M{LEFT} {budget:.1f} H{RIGHT}" stroke="#c0392b" stroke-width="1.8" stroke-dasharray="6 4"/>',
        text(LEFT + 6, budget - 6, "budget", 12, "#c0392b"),
    ]


def phases() -> list[str]:
    """Return the names of the phases and the lines between them."""
    drawn = []
    for name, begin, end in PHASES:
        drawn.append(text((x(begin) + x(end)) / 2, 48, name, 13, MUTED, 'text-anchor="middle"'))
        if begin:
            drawn.append(f'<path d="M{x(begin):.1f} 36 V{TIER_BOTTOM}" stroke="#afb8c1" stroke-dasharray="2 4"/>')
    return drawn


def notes() -> list[str]:
    """Return the labels on the picture, and the legend."""
    drawn = [
        text(LEFT, 24, "One iteration: where each storage's bytes are", 16, INK, 'font-weight="bold"'),
        text(x(24) + 18, 385, "C needs room:", 12),
        text(x(24) + 18, 404, "W goes out", 12),
        text(x(44) + 14, 385, "for D:", 12),
        text(x(44) + 14, 404, "A goes out", 12),
        text(x(56) + 18, 385, "W comes", 12),
        text(x(56) + 18, 404, "back", 12),
        text(x(66) + 18, 385, "A back, elsewhere", 12),
        text(x(66) + 18, 404, "W dropped: copy valid", 12),
    ]
    at = LEFT
    for name, colour in COLOURS.items():
        drawn.append(f'<rect x="{at}" y="542" width="14" height="14" rx="3" fill="{colour}"/>')
        drawn.append(text(at + 20, 554, name, 13))
        at += 42 + 8 * len(name)
    drawn.append(text(RIGHT, 554, "faint: a valid copy in the tier", 13, MUTED, 'text-anchor="end"'))
    return drawn


def picture() -> str:
    """Return the whole SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" fill="none" '
        'font-family="DejaVu Sans, Verdana, Helvetica, sans-serif">',
        "<title>Storages of one training iteration, in the arena and in the tier</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PAPER}"/>',
        *panel(LIVE_TOP, LIVE_BOTTOM, "live bytes", "all storages"),
        *panel(ARENA_TOP, ARENA_BOTTOM, "arena", "= the budget"),
        *panel(TIER_TOP, TIER_BOTTOM, "tier", "disk or ram"),
        *live_line(),
        *phases(),
        *(bar for storage in STORAGES for bar in bars(storage)),
        *(part for move in MOVES for part in arrow(*move)),
        *notes(),
        "</svg>",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(picture())
