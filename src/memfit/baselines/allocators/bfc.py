"""TensorFlow's BFC allocator (core/common_runtime/bfc_allocator.cc): best fit with coalescing, doubling regions.

Its power-of-two bins hold chunks by size and address and are searched upwards, so what they find is the smallest
chunk that fits, the lowest of equals: here one list.
"""

from __future__ import annotations

from memfit.baselines.allocators.blocks import Blocks
from memfit.baselines.allocators.driver import Driver
from memfit.ir import align_up

_MIN_ALLOCATION_BYTES = 256
_FIRST_REGION_BYTES = 2 << 20
_MAX_WASTE_BYTES = 128 << 20


class Bfc:
    """With growth allowed; `capacity_bytes` is the limit the last region is cut to."""

    alignment = _MIN_ALLOCATION_BYTES

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.driver = Driver(capacity_bytes)
        self._blocks = Blocks()
        self._region_bytes = _FIRST_REGION_BYTES

    def malloc(self, size_bytes: int) -> int:
        """Return the start of the smallest chunk that fits, split if that leaves much."""
        needed = align_up(size_bytes, self.alignment)
        found = self._blocks.find(needed)
        address = self._extend(needed) if found is None else found
        self._blocks.take(address)
        chunk_bytes = self._blocks.size_of(address)
        if chunk_bytes >= 2 * needed or chunk_bytes - needed >= _MAX_WASTE_BYTES:
            self._blocks.split(address, needed)
        return address

    def free(self, address: int) -> None:
        """Merge the chunk with its free neighbours."""
        self._blocks.free(address)

    def _extend(self, needed: int) -> int:
        doubled = False
        while needed > self._region_bytes:
            self._region_bytes *= 2
            doubled = True
        size_bytes = self._cut_to_capacity(needed)
        address = self.driver.reserve(size_bytes)
        self._blocks.add(address, size_bytes)
        if not doubled:
            self._region_bytes *= 2
        return address

    def _cut_to_capacity(self, needed: int) -> int:
        if self.driver.capacity_bytes is None:
            return self._region_bytes
        available = (self.driver.capacity_bytes - self.driver.reserved_bytes) // self.alignment * self.alignment
        return max(needed, min(self._region_bytes, available))
