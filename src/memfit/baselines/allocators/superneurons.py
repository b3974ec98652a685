"""SuperNeurons' pool (superneurons-release, src/gpu_malloc.cpp): one block, first fit, 16 byte alignment."""

from __future__ import annotations

from bisect import bisect_left

from memfit.baselines.allocators.driver import Driver
from memfit.ir import align_up


class SuperNeurons:
    """First fit does not look at the block's end, so the block is as long as the stream turns out to need."""

    alignment = 16

    def __init__(self) -> None:
        self.driver = Driver()
        self._base = self.driver.reserve_growing()
        self.driver.allocations = 1
        self._end = self._base
        self._used: dict[int, int] = {}
        # The holes below `_end`, by address.
        self._hole_begins: list[int] = []
        self._hole_sizes: list[int] = []

    def malloc(self, size_bytes: int) -> int:
        """Return the lowest address with room."""
        needed = align_up(size_bytes, self.alignment)
        address = self._first_fit(needed)
        self._used[address] = needed
        return address

    def free(self, address: int) -> None:
        """Leave a hole, one with those before and after it."""
        size = self._used.pop(address)
        at = bisect_left(self._hole_begins, address)
        if at < len(self._hole_begins) and self._hole_begins[at] == address + size:
            size += self._pop_hole(at)
        if at and self._hole_begins[at - 1] + self._hole_sizes[at - 1] == address:
            at -= 1
            address = self._hole_begins[at]
            size += self._pop_hole(at)
        if address + size == self._end:
            self._end = address
        else:
            self._hole_begins.insert(at, address)
            self._hole_sizes.insert(at, size)

    def _first_fit(self, needed: int) -> int:
        at = next((at for at, size in enumerate(self._hole_sizes) if size >= needed), None)
        if at is None:
            return self._append(needed)
        address = self._hole_begins[at]
        size = self._pop_hole(at)
        if size > needed:
            self._hole_begins.insert(at, address + needed)
            self._hole_sizes.insert(at, size - needed)
        return address

    def _append(self, needed: int) -> int:
        address = self._end
        self._end += needed
        missing = self._end - self._base - self.driver.reserved_bytes
        if missing > 0:
            self.driver.extend(self._base, missing, calls=0)
        return address

    def _pop_hole(self, at: int) -> int:
        del self._hole_begins[at]
        return self._hole_sizes.pop(at)
