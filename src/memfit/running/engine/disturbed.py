"""Tiers on which copies fail, are slow or begin late. Only tests and benchmarks ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from memfit.running.engine.tiers import TierSpec


@dataclass(frozen=True)
class DisturbedTier(TierSpec):
    """A tier that is disturbed; by default nothing is disturbed.

    Copies are counted from 1. The `fail_*` and `corrupt_read` fields say which write or read goes wrong, with `repeat`
    also all that follow. The `link_*` fields slow every copy down to what such a link would do, each way by itself;
    from copy number `link_changes_at` on it has `link_change` times its speed. On a GPU copies begin late by random
    times up to `longest_delay_us`. With `no_threads` no thread can be had for copies beside the ops.
    """

    fail_write: int = 0
    fail_read: int = 0
    corrupt_read: int = 0
    repeat: bool = False
    link_bytes_per_second: float = 0.0
    link_latency_seconds: float = 0.0
    link_changes_at: int = 0
    link_change: float = 1.0
    longest_delay_us: int = 0
    no_threads: bool = False

    def __str__(self) -> str:
        return super().__str__()


def disturbance_of(tier: TierSpec) -> dict[str, Any]:
    """Return the disturbances as the engine takes them; empty for any other tier."""
    known = {field.name for field in fields(TierSpec)}
    return {name: value for name, value in asdict(tier).items() if name not in known}


def tier_of(values: Mapping[str, Any]) -> TierSpec:
    """Return the tier with these fields, as `dataclasses.asdict` gives them."""
    plain = values.keys() <= {field.name for field in fields(TierSpec)}
    return TierSpec(**values) if plain else DisturbedTier(**values)
