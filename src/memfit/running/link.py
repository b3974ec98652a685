"""How fast copies are in a session: what its own copies took, what was measured before, or else a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memfit.machine import Link, Machine
from memfit.running.tiers import TierSpec

_GUESS_GB_PER_S = {"ram": 4.0, "disk": 0.5}
_DERATING = 0.9  # a plan for a link slower than it is costs little, the other way round much
_WAYS = {"out": "swaps", "in": "prefetches"}  # each way's count of copies


@dataclass(frozen=True)
class SessionLink:
    """The link to a session's tier. `measured` is a GPU's machine, by size of copy; None where there is none."""

    tier: TierSpec
    measured: Machine | None = None

    def machine(self, whole: Mapping[str, int], lately: Mapping[str, int]) -> Machine:
        """Return the machine to plan for. `whole`: the session's stats; `lately`: by how much they grew lately."""
        if self.measured is None:
            return self._of_rates(whole, lately)
        usual = 1 / (self.measured.loaded_factor * _DERATING)
        out, into = (_slowdown(self.measured, way, whole, lately) or usual for way in _WAYS)
        return self.measured.slowed(out, into)

    def _of_rates(self, whole: Mapping[str, int], lately: Mapping[str, int]) -> Machine:
        guess = _GUESS_GB_PER_S[self.tier.kind]
        latency_us = 1e6 * self.tier.link_latency_seconds
        rates = (_rate(lately, way) or _rate(whole, way) or guess for way in _WAYS)
        out, into = (Link.of_bandwidth(_DERATING * rate, latency_us) for rate in rates)
        return Machine(f"{self.tier} as measured", out, into)


def _timed(stats: Mapping[str, int], way: str) -> tuple[int, int]:
    """Return the bytes of the copies whose time is known, and their nanoseconds."""
    return stats[f"bytes_{way}"] - stats[f"untimed_{way}_bytes"], stats[f"{way}_ns"]


def _rate(stats: Mapping[str, int], way: str) -> float:
    """Return the bytes a nanosecond of the copies that `stats` counts; 0 if there were none."""
    moved, ns = _timed(stats, way)
    return moved / ns if moved > 0 and ns else 0.0


def _slowdown(machine: Machine, way: str, whole: Mapping[str, int], lately: Mapping[str, int]) -> float:
    """Return how many times as long as on an idle link planned copies took, and a margin; 0 if there were none."""
    link = machine.out if way == "out" else machine.into
    for stats in (lately, whole):
        (moved, ns), count = _timed(stats, way), stats[_WAYS[way]]
        if moved > 0 and ns and count:
            return ns / 1000 / (count * link.copy_us(moved // count)) / _DERATING
    return 0.0
