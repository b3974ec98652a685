"""CnMem (github.com/NVIDIA/cnmem): best fit, splits without a minimum, grows by what is asked."""

from __future__ import annotations

from memfit.baselines.allocators.blocks import Blocks
from memfit.baselines.allocators.driver import Driver
from memfit.ir import align_up

_GRANULARITY_BYTES = 512
_FIRST_BLOCK_BYTES = 1 << 20


class CnMem:
    """One first block, then one more for each request that nothing fits; never given back, never merged across."""

    alignment = _GRANULARITY_BYTES

    def __init__(self, first_block_bytes: int = _FIRST_BLOCK_BYTES) -> None:
        self.driver = Driver()
        self._blocks = Blocks()
        self._grow(align_up(first_block_bytes, self.alignment))

    def malloc(self, size_bytes: int) -> int:
        """Return the start of the smallest free block that fits; what is left of it stays free."""
        needed = align_up(size_bytes, self.alignment)
        found = self._blocks.find(needed)
        address = self._grow(needed) if found is None else found
        self._blocks.take(address)
        if self._blocks.size_of(address) > needed:
            self._blocks.split(address, needed)
        return address

    def free(self, address: int) -> None:
        """Merge the block with its free neighbours."""
        self._blocks.free(address)

    def _grow(self, size_bytes: int) -> int:
        address = self.driver.reserve(size_bytes)
        self._blocks.add(address, size_bytes)
        return address
