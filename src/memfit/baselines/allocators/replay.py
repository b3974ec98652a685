"""The two interfaces of allocators, and what a stream of mallocs and frees costs in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from memfit.baselines.allocators.driver import Driver
from memfit.events import MallocStream, live_after_steps


class Allocator(Protocol):
    """Answers one request at a time, knowing nothing of the next; its memory comes from `driver`."""

    alignment: int
    """Every address is a multiple of this (bytes)."""
    driver: Driver

    def malloc(self, size_bytes: int) -> int:
        """Return the address of at least `size_bytes` > 0; raises BudgetError if the driver has no more."""

    def free(self, address: int) -> None:
        """Take back what `malloc` returned."""


@dataclass(frozen=True, slots=True)
class PlannedOffsets:
    """The placement of steps [begin, end) by a planner that knows all events: one block of `footprint_bytes`.

    `offsets` holds the place (bytes) of every storage allocated in these steps or alive throughout them.
    """

    offsets: Mapping[int, int]
    footprint_bytes: int
    begin: int
    end: int


class Planner(Protocol):
    """Places every storage with the whole stream known."""

    def __call__(self, events: MallocStream) -> PlannedOffsets:
        """Return the places for `events`."""


@dataclass(frozen=True, slots=True)
class AllocatorOutcome:
    """The cost of a stream of events in one allocator.

    `footprint_bytes` is the peak of what it reserves. `fragmentation` is 1 - live / reserved where reserved is at its
    peak, with the most that is live then. `driver_allocations` counts how often it asked the driver for memory,
    `calls` mallocs and frees, of which the peak of live bytes is taken too; `seconds` is the time of all of them.
    """

    allocator: str
    footprint_bytes: int
    peak_live_bytes: int
    fragmentation: float
    driver_allocations: int
    calls: int
    seconds: float

    @property
    def over_peak(self) -> float:
        """The part by which the footprint exceeds the peak of live bytes."""
        return self.footprint_bytes / self.peak_live_bytes - 1 if self.peak_live_bytes else 0.0

    @property
    def us_per_call(self) -> float:
        """Microseconds for one malloc or free."""
        return self.seconds * 1e6 / max(self.calls, 1)


def replay(name: str, allocator: Allocator, events: MallocStream) -> AllocatorOutcome:
    """Run `events` through `allocator` and return what they cost; raises BudgetError as the allocator does."""
    begin = perf_counter()
    reserved = _reserved_after_steps(allocator, events)
    seconds = perf_counter() - begin
    live = live_after_steps(events)
    footprint = max(reserved, default=0)
    live_there = max((bytes_ for bytes_, all_ in zip(live, reserved, strict=True) if all_ == footprint), default=0)
    return AllocatorOutcome(
        allocator=name,
        footprint_bytes=footprint,
        peak_live_bytes=max(live, default=0),
        fragmentation=_fragmentation(live_there, footprint),
        driver_allocations=allocator.driver.allocations,
        calls=len(events.steps),
        seconds=seconds,
    )


def replay_planner(name: str, planner: Planner, events: MallocStream) -> AllocatorOutcome:
    """Let `planner` place `events` and return what they cost: one driver allocation, of all it needs."""
    begin = perf_counter()
    packed = planner(events)
    seconds = perf_counter() - begin
    # Blocks that are live when its part begins count too.
    peak = max(live_after_steps(events)[max(packed.begin - 1, 0) : packed.end], default=0)
    return AllocatorOutcome(
        allocator=name,
        footprint_bytes=packed.footprint_bytes,
        peak_live_bytes=peak,
        fragmentation=_fragmentation(peak, packed.footprint_bytes),
        driver_allocations=1,
        calls=packed.end - packed.begin,
        seconds=seconds,
    )


def _reserved_after_steps(allocator: Allocator, events: MallocStream) -> list[int]:
    addresses: dict[int, int] = {}
    reserved = []
    for step in events.steps:
        if step >= 0:
            addresses[step] = allocator.malloc(events.sizes[step])
        else:
            allocator.free(addresses.pop(~step))
        reserved.append(allocator.driver.reserved_bytes)
    return reserved


def _fragmentation(live_bytes: int, reserved_bytes: int) -> float:
    return 1 - live_bytes / reserved_bytes if reserved_bytes else 0.0
