"""PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp, default settings, one stream).

Left out: what more than one stream, CUDA graphs and settings other than expandable segments change.
"""

from __future__ import annotations

from memfit.baselines.allocators.blocks import Blocks
from memfit.baselines.allocators.driver import Driver
from memfit.ir import align_up

MIN_BLOCK_BYTES = 512  # kMinBlockSize
SMALL_BYTES = 1 << 20  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 << 20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 << 20  # kLargeBuffer
MIN_LARGE_BYTES = 10 << 20  # kMinLargeAlloc: from here on a request has a segment of its own size
ROUND_LARGE_BYTES = 2 << 20  # kRoundLarge


class PyTorchCaching:
    """Two pools of segments, best fit in each; segments go back only when `capacity_bytes` leave no other way."""

    alignment = MIN_BLOCK_BYTES

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.driver = Driver(capacity_bytes)
        self._small = Blocks()
        self._large = Blocks()
        self._pool_of: dict[int, Blocks] = {}
        self._pool_of_segment: dict[int, Blocks] = {}

    def malloc(self, size_bytes: int) -> int:
        """Return the start of the smallest free block of the pool that fits, or of a new segment."""
        needed = align_up(size_bytes, MIN_BLOCK_BYTES)
        pool = self._small if needed <= SMALL_BYTES else self._large
        found = pool.find(needed)
        address = self._new_segment(pool, needed) if found is None else found
        pool.take(address)
        rest = pool.size_of(address) - needed
        if rest >= MIN_BLOCK_BYTES if pool is self._small else rest > SMALL_BYTES:
            pool.split(address, needed)
        self._pool_of[address] = pool
        return address

    def free(self, address: int) -> None:
        """Merge the block with its free neighbours in the segment, which stays cached."""
        self._pool_of.pop(address).free(address)

    def _new_segment(self, pool: Blocks, needed: int) -> int:
        size_bytes = _segment_bytes(needed)
        if not self.driver.has_room(size_bytes):
            self._release_cached()
        address = self.driver.reserve(size_bytes)
        self._pool_of_segment[address] = pool
        pool.add(address, size_bytes)
        return address

    def _release_cached(self) -> None:
        """Give back every segment that is free from end to end."""
        for address, size_bytes in list(self.driver.ranges.items()):
            pool = self._pool_of_segment[address]
            if pool.is_free_whole(address, size_bytes):
                pool.drop(address)
                del self._pool_of_segment[address]
                self.driver.release(address)


def _segment_bytes(needed: int) -> int:
    if needed <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if needed < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return align_up(needed, ROUND_LARGE_BYTES)
