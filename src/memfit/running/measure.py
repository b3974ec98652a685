"""How fast copies between memory and a tier are on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from memfit.machine import Link, Machine
from memfit.running import engine
from memfit.running.tiers import TierSpec

_SIZES = tuple(1 << exponent for exponent in range(12, 27, 2))  # 4 KiB to 64 MiB
_REPEATS = 5


def measure_machine(tier: TierSpec, sustained: tuple[float, float] | None = None) -> Machine:
    """Return a machine with the measured links to `tier`; about two seconds.

    `sustained` (bytes/s out and in) is what a disk does once its cache is full: copies as small as these hit the cache
    and only tell the latency. Raises TierError if a copy fails.
    """
    native = engine.load()
    out, into, factors = [], [], []
    for size in _SIZES:
        out_s, in_s, out_beside, in_beside = native.measure_tier(tier.kind, tier.folder, size, _REPEATS)
        out.append(1e6 * out_s)
        into.append(1e6 * in_s)
        factors.append(min(out_s / out_beside, in_s / in_beside, 1.0))
    links = _ascending(out), _ascending(into)
    if sustained is not None:
        links = Link.affine(out[0], 1e9 / sustained[0]), Link.affine(into[0], 1e9 / sustained[1])
    capacity = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(f"this machine, {tier}", *links, factors[-1], capacity, alignment=64)


def machine_file(tier: TierSpec) -> Path:
    """Return where the measured machine for `tier` is kept."""
    return engine.cache_folder() / f"machine-{tier.kind}.json"


def _ascending(times_us: list[float]) -> Link:
    """Return the curve; noise that has a larger copy take less time is levelled."""
    level = [max(times_us[: index + 1]) for index in range(len(times_us))]
    return Link(_SIZES, tuple(level))
