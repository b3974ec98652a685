"""The speed of copies in a session: from its own copies, from an earlier measurement, otherwise a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from memfit.machine import ZERO_COPY, Link, Machine
from memfit.running.engine.tiers import TierSpec

_GUESS_GB_PER_S = {"ram": 4.0, "disk": 0.5}
_DERATING = 0.9  # a plan for a link slower than it is costs little, the other way round much
_CHANGED = 2.0  # times as fast or as slow as before: then the link is another one
_COPIED = {"out": "bytes_stored", "in": "bytes_loaded"}  # of the bytes moved each way
_WAYS = {"out": "timed_copies_out", "in": "timed_copies_in"}  # each way's count of planned copies whose time is known


@dataclass
class SessionLink:
    """The link to a session's tier. `measured` is a GPU's machine, by size of copy; otherwise None.

    `processes` share the link, unless it is a GPU's own: copies that were timed tell what is left for this one.
    """

    tier: TierSpec
    measured: Machine | None = None
    processes: int = 1
    _since: Mapping[str, int] = field(default_factory=dict)  # the stats from which on copies count
    _changed: Mapping[str, int] | None = None  # those when the link was seen to be another one, a moment ago

    def note(self, stats: Mapping[str, int], before: Mapping[str, int]) -> None:
        """Note that an iteration has ended. `stats` are the session's, `before` those of some iterations ago.

        The more copies the steadier the mean; but once those since `before` are far from the others, it begins anew.
        Until all of these are from after that, they alone count: the link may have changed in their midst.
        """
        if any(self._has_changed(stats, before, way) for way in _WAYS):
            self._changed = stats
        if self._changed is not None:
            self._since = before
            if all(before[count] >= self._changed[count] for count in _WAYS.values()):
                self._changed = None

    def _has_changed(self, stats: Mapping[str, int], before: Mapping[str, int], way: str) -> bool:
        earlier, lately = _rate(before, self._since, way), _rate(stats, before, way)
        return bool(earlier and lately) and not 1 / _CHANGED < lately / earlier < _CHANGED

    def machine(self, stats: Mapping[str, int]) -> Machine:
        """Return the machine to plan for; `stats` are the session's."""
        return self._of_rates(stats) if self.measured is None else self._of_curve(self.measured, stats)

    def _of_rates(self, stats: Mapping[str, int]) -> Machine:
        guess = _GUESS_GB_PER_S[self.tier.kind] / self.processes
        rates = (self._copied_rate(stats, way) or guess for way in _WAYS)
        out, into = (Link.of_bandwidth(_DERATING * rate, latency_us=0.0) for rate in rates)
        return Machine(f"{self.tier} as measured", out, into)

    def _copied_rate(self, stats: Mapping[str, int], way: str) -> float:
        """Return the speed at which traces have copies move bytes: those that were left, where the tier compresses."""
        share = _share_left(stats, self._since, way) if self.tier.compress else 1.0
        return share * _rate(stats, self._since, way)

    def _of_curve(self, measured: Machine, stats: Mapping[str, int]) -> Machine:
        out, into = (self._slowdown(way, stats, link) or 1 / measured.loaded_factor
                     for way, link in (("out", measured.out), ("in", measured.into)))  # fmt: skip
        slowed = measured.slowed(out / _DERATING, into / _DERATING)
        return replace(slowed, faults=measured.faults or ZERO_COPY)  # a GPU's ops reach the tier over the link

    def _slowdown(self, way: str, stats: Mapping[str, int], link: Link) -> float:
        """Return the time of planned copies as a multiple of that on an idle link; 0 without such copies."""
        moved, ns = _timed(stats, self._since, way)
        count = stats[_WAYS[way]] - self._since.get(_WAYS[way], 0)
        return ns / 1000 / (count * link.copy_us(moved // count)) if moved > 0 and ns and count else 0.0


def _timed(stats: Mapping[str, int], since: Mapping[str, int], way: str) -> tuple[int, int]:
    """Return the bytes of the copies between two counts whose time is known, and their nanoseconds."""
    names = (f"bytes_{way}", f"untimed_{way}_bytes", f"{way}_ns")
    moved, untimed, ns = (stats[name] - since.get(name, 0) for name in names)
    return moved - untimed, ns


def _rate(stats: Mapping[str, int], since: Mapping[str, int], way: str) -> float:
    """Return the bytes per nanosecond of the copies between two counts; 0 without copies."""
    moved, ns = _timed(stats, since, way)
    return moved / ns if moved > 0 and ns else 0.0


def _share_left(stats: Mapping[str, int], since: Mapping[str, int], way: str) -> float:
    """Return the part of the bytes moved between two counts that was written, or read, by a tier that compresses."""
    moved, copied = (stats[name] - since.get(name, 0) for name in (f"bytes_{way}", _COPIED[way]))
    return min(copied / moved, 1.0) if moved > 0 and copied > 0 else 1.0
