"""No allocator at all: `cudaMalloc` and `cudaFree` for each request."""

from __future__ import annotations

from memfit.baselines.allocators.driver import PAGE_BYTES, Driver
from memfit.ir import align_up

_GRANULARITY_BYTES = 512


class NoPool:
    """Asks the driver for each block, rounded up to `granularity_bytes`, and gives it back at once.

    `cudaMalloc` promises 512 bytes; a block mapped on its own takes whole pages of the driver.
    """

    def __init__(self, granularity_bytes: int = _GRANULARITY_BYTES) -> None:
        self.alignment = granularity_bytes
        self.driver = Driver()

    def malloc(self, size_bytes: int) -> int:
        """Return the address of a range of its own."""
        return self.driver.reserve(align_up(size_bytes, self.alignment))

    def free(self, address: int) -> None:
        """Give the range back to the driver."""
        self.driver.release(address)


def whole_pages() -> NoPool:
    """Return the driver's view: no pool, and 2 MiB pages."""
    return NoPool(PAGE_BYTES)
