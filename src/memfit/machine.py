"""The machine that a plan is for: its capacity, its alignment, and the time of a copy each way."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from memfit._native import CUDA_ALIGNMENT
from memfit.errors import InputError, UsageError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Link:
    """The time of a copy in one direction, alone: known at some sizes, and linear in between.

    Below the first size its time holds, since a small copy is all latency; above the last the last slope goes on.

    Attributes:
        size_bytes: Two or more sizes, ascending.
        time_us: Microseconds of a copy of each size; they do not fall.

    Raises:
        InputError: The sizes and times are not such a curve.
    """

    size_bytes: tuple[int, ...]
    time_us: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.size_bytes) != len(self.time_us) or len(self.size_bytes) < 2:
            raise InputError("a link needs two or more sizes, and a time for each", remedy="measure it again")
        slopes = [
            b > a and t1 >= t0 >= 0
            for a, b, t0, t1 in zip(self.size_bytes, self.size_bytes[1:], self.time_us, self.time_us[1:], strict=False)
        ]
        if not all(slopes):
            raise InputError("the sizes of a link must ascend and its times may not fall", remedy="measure it again")

    @classmethod
    def affine(cls, latency_us: float, ns_per_byte: float) -> Link:
        """Return the link that takes `latency_us` plus `ns_per_byte` nanoseconds for each byte."""
        return cls((0, GIB), (latency_us, latency_us + ns_per_byte * GIB / 1000))

    @classmethod
    def of_bandwidth(cls, gb_per_s: float, latency_us: float = 10.0) -> Link:
        """Return the link of `gb_per_s` (10^9 bytes a second) and `latency_us`."""
        return cls.affine(latency_us, 1 / gb_per_s)

    @classmethod
    def levelled(cls, size_bytes: Sequence[int], time_us: Sequence[float]) -> Link:
        """Return the measured curve; noise that has a larger copy take less time is levelled."""
        return cls(tuple(size_bytes), tuple(accumulate(time_us, max)))

    def copy_us(self, size_bytes: int) -> float:
        """Return the microseconds a copy of `size_bytes` takes; nothing takes no time."""
        if size_bytes <= 0:
            return 0.0
        above = min(max(bisect_right(self.size_bytes, size_bytes), 1), len(self.size_bytes) - 1)
        low, high = self.size_bytes[above - 1], self.size_bytes[above]
        start, end = self.time_us[above - 1], self.time_us[above]
        return start + max(size_bytes - low, 0) * ((end - start) / (high - low))

    def gb_per_s(self, size_bytes: int) -> float:
        """Return the speed of a copy of `size_bytes` (10^9 bytes a second)."""
        return size_bytes / self.copy_us(size_bytes) / 1000

    def slowed(self, factor: float) -> Link:
        """Return the link on which every copy takes `factor` times as long."""
        return Link(self.size_bytes, tuple(factor * us for us in self.time_us))

    def copies_us(self, sizes_bytes: Sequence[int]) -> NDArray[np.float64]:
        """Return `copy_us` of each size."""
        return np.array([self.copy_us(size) for size in sizes_bytes], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Faults:
    """The way in which memory comes in when an op touches it and it is not there.

    Attributes:
        fault_us: Microseconds that a fault takes beside its copy.
        chunk_bytes: The bytes that come in at once; 0 if nothing does, and each touch goes over the link (zero copy).
        block_bytes: The bytes that leave at once: a multiple of `chunk_bytes`.
        chunks_per_fault: The chunks, touched by one op, that come in for one `fault_us`.
        keeps_copies: Whether a chunk that was not written to leaves without a copy.
        fresh_faults: Whether a chunk without contents is a fault where there is room; not if an allocator hands out
            memory that is there.
        sweeps: The times that a product (`mm`) reads its operands.

    Raises:
        InputError: A figure is out of range.
    """

    fault_us: float
    chunk_bytes: int
    block_bytes: int
    chunks_per_fault: int = 1
    keeps_copies: bool = True
    fresh_faults: bool = True
    sweeps: int = 1

    def __post_init__(self) -> None:
        nothing_comes_in = self.chunk_bytes == self.block_bytes == 0
        whole = 0 < self.chunk_bytes <= self.block_bytes and self.block_bytes % self.chunk_bytes == 0
        if not (whole or nothing_comes_in):
            raise InputError(
                f"faults have chunks of {self.chunk_bytes} bytes and blocks of {self.block_bytes}",
                why="a block is made of one or more chunks",
                remedy="correct the file, or measure it again",
            )
        if self.fault_us < 0 or self.chunks_per_fault < 1 or self.sweeps < 1:
            raise InputError(
                f"faults take {self.fault_us} us, of {self.chunks_per_fault} chunks, and products {self.sweeps} sweeps",
                why="a time is 0 or more, the others 1 or more",
                remedy="correct the file, or measure it again",
            )


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a plan is for.

    Attributes:
        name: Its name.
        out: The link out of the arena.
        into: The link into the arena.
        both_factor: The part of its speed, in (0, 1], that a link has while the other direction is busy too.
        capacity_bytes: The memory that the arena may come from; 0 when unknown.
        alignment: Bytes; every placement is a multiple of it.
        loaded_factor: The part of its speed, in (0, 1], that a link has while ops run.
        memory_bytes_per_s: The speed of copies inside the device's own memory; 0 when unknown.
        faults: The way in which memory comes in when an op touches it; None when unknown.

    Raises:
        InputError: A factor or a size is out of range.
    """

    name: str
    out: Link
    into: Link
    both_factor: float = 1.0
    capacity_bytes: int = 0
    alignment: int = CUDA_ALIGNMENT
    loaded_factor: float = 1.0
    memory_bytes_per_s: float = 0.0
    faults: Faults | None = None

    def __post_init__(self) -> None:
        if not 0 < self.both_factor <= 1:
            raise InputError(f"both_factor is {self.both_factor}, outside (0, 1]", remedy="measure it again")
        if not 0 < self.loaded_factor <= 1:
            raise InputError(f"loaded_factor is {self.loaded_factor}, outside (0, 1]", remedy="measure it again")
        if self.capacity_bytes < 0 or self.alignment < 1:
            raise InputError(
                f"the machine has a capacity of {self.capacity_bytes} bytes and an alignment of {self.alignment}",
                why="a capacity is 0 or more, an alignment 1 or more",
                remedy="correct the file, or measure it again",
            )

    def slowed(self, out: float, into: float) -> Machine:
        """Return the machine whose copies take `out` and `into` times as long, whether ops run or not."""
        return replace(self, out=self.out.slowed(out), into=self.into.slowed(into), loaded_factor=1.0)

    def under_load(self) -> Machine:
        """Return the machine whose copies take at any time what they take while ops run: a plan's copies do."""
        return self.slowed(1 / self.loaded_factor, 1 / self.loaded_factor)


def _symmetric(name: str, gb_per_s: float, both_factor: float, latency_us: float = 10.0) -> Machine:
    link = Link.of_bandwidth(gb_per_s, latency_us)
    return Machine(name, link, link, both_factor)


WINDOW = Faults(160.0, 1 << 20, 1 << 20, sweeps=60)
"""A window of the CPU's memory over the tier's file, measured on two cores: a fault takes 160 microseconds a chunk of 1
MiB, and a product of a narrow matrix with a wide one reads the wide one 40 to 60 times, in blocks."""
MANAGED = Faults(30.0, 64 << 10, 2 << 20, chunks_per_fault=4, keeps_copies=False, fresh_faults=False, sweeps=8)
"""A GPU's managed memory. These figures are from literature, or reckoned, and no GPU has confirmed them: a group of
faults takes 20 to 50 microseconds, 64 KiB or more come in, and 2 MiB leave, written to or not. With groups of 256 KiB a
stream over PCIe 3.0 comes in at 5 GB/s. Eight sweeps are reckoned: a wave of a GPU's blocks needs a thousand rows and
columns of a product's operands, and products are some thousands wide."""
ZERO_COPY = Faults(0.0, 0, 0, sweeps=8)
"""Page-locked memory of the host that a GPU's ops read over the link, again at each touch."""
_ZERO_COPY_SHARE = 0.87
"""The part of a copy's rate that such reads reach: 0.85 to 0.9, from literature."""


def _zero_copy(name: str, gb_per_s: float) -> Machine:
    link = Link.of_bandwidth(gb_per_s * _ZERO_COPY_SHARE)
    return Machine(name, link, link, 0.9, faults=ZERO_COPY)


# The PCIe rates are four fifths of the nominal ones (PCI-SIG: 8, 16, 32 GT/s a lane, 16 lanes, 128b/130b coding:
# 15.75, 31.5, 63 GB/s), what is left after packet headers and flow control. NVLink-C2C: 450 GB/s each way (NVIDIA Grace
# Hopper whitepaper), the same share of it. gh200: that link as nvbandwidth found it, 411 to 421 GB/s into the GPU and
# 170 out (NVIDIA/Megatron-LM, issue 6491). nvme: a drive on four PCIe 4.0 lanes, the reads faster than the writes.
_PROFILES = {
    machine.name: machine
    for machine in (
        _symmetric("pcie3", 12.6, 0.9),
        _symmetric("pcie4", 25.2, 0.9),
        _symmetric("pcie5", 50.4, 0.9),
        _symmetric("nvlink-c2c", 360.0, 0.9, latency_us=5.0),
        Machine("gh200", Link.of_bandwidth(170.0, 5.0), Link.of_bandwidth(415.0, 5.0), both_factor=0.9),
        Machine("nvme", Link.of_bandwidth(4.0, 80.0), Link.of_bandwidth(6.0, 80.0), both_factor=0.7),
        replace(_symmetric("uvm", 25.2, 0.9), faults=MANAGED),
        _zero_copy("zerocopy", 25.2),
        # arXiv 1903.06631, the fit its authors' scripts use for pinned copies over PCIe 3.0 x16.
        Machine("paper-pcie3", Link.affine(47.2, 0.0756), Link.affine(9.7, 0.0823)),
    )
}


def profile_names() -> tuple[str, ...]:
    """Return the names that `profile` takes."""
    return tuple(_PROFILES)


def profile(name: str) -> Machine:
    """Find a built-in machine.

    Arguments:
        name: One of `profile_names()`, such as "pcie4".

    Returns:
        The machine.

    Raises:
        UsageError: There is no machine of this name.
    """
    if name not in _PROFILES:
        raise UsageError(
            f"there is no machine {name!r}",
            why=f"the known ones are {', '.join(_PROFILES)}",
            remedy="name one of these, or a file that `memfit doctor` wrote",
        )
    return _PROFILES[name]
