"""PyTorch's caching allocator with expandable segments (c10/cuda/CUDACachingAllocator.cpp, one stream).

Each pool is one range that grows in place, so a block may span what was mapped at different times.
"""

from __future__ import annotations

from memfit.baselines.allocators.blocks import Blocks
from memfit.baselines.allocators.driver import Driver
from memfit.baselines.allocators.pytorch import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from memfit.ir import align_up


class PyTorchExpandable:
    """Two growing ranges; what is mapped is never unmapped, since that happens only when memory runs out."""

    alignment = MIN_BLOCK_BYTES

    def __init__(self) -> None:
        self.driver = Driver()
        self._small = _Range(self.driver, SMALL_SEGMENT_BYTES)
        self._large = _Range(self.driver, LARGE_SEGMENT_BYTES)
        self._range_of: dict[int, _Range] = {}

    def malloc(self, size_bytes: int) -> int:
        """Return the start of the smallest free block of the pool that fits, or of what is mapped for it."""
        needed = align_up(size_bytes, MIN_BLOCK_BYTES)
        owner = self._small if needed <= SMALL_BYTES else self._large
        address = owner.malloc(needed)
        self._range_of[address] = owner
        return address

    def free(self, address: int) -> None:
        """Merge the block with its free neighbours in the range."""
        self._range_of.pop(address).blocks.free(address)


class _Range:
    def __init__(self, driver: Driver, granularity_bytes: int) -> None:
        self.blocks = Blocks()
        self._driver = driver
        self._granularity_bytes = granularity_bytes
        self._begin = driver.reserve_growing()

    def malloc(self, needed: int) -> int:
        address = self._find(needed)
        self.blocks.take(address)
        # Both pools split at the small pool's limit here.
        if self.blocks.size_of(address) - needed >= MIN_BLOCK_BYTES:
            self.blocks.split(address, needed)
        return address

    def _find(self, needed: int) -> int:
        """Prefer any other block to the one at the end, which counts as large as it could grow."""
        end = self._begin + self._driver.ranges[self._begin]
        last = self.blocks.free_block_ending(end)
        found = self.blocks.find(needed, passing_over=last)
        if found is not None:
            return found
        last_bytes = 0 if last is None else self.blocks.size_of(last)
        if last_bytes < needed:
            mapped = align_up(needed - last_bytes, self._granularity_bytes)
            self._driver.extend(self._begin, mapped)
            self.blocks.add(end, mapped)
        return end - last_bytes
