"""The device driver below an allocator: hands out address ranges and counts them."""

from __future__ import annotations

from memfit.errors import BudgetError
from memfit.ir import align_up
from memfit.units import format_bytes

PAGE_BYTES = 2 << 20
"""The unit that a driver maps, and the alignment of the ranges that it hands out."""

_FIRST_ADDRESS = 1 << 40  # no allocator may take an address for a small number, or for null
_ROOM_BYTES = 1 << 44  # each range may be extended in place by this much


class Driver:
    """Reserves ranges at rising addresses that never touch; with a capacity, no more than that at a time."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.allocations = 0
        self.ranges: dict[int, int] = {}
        self._next = _FIRST_ADDRESS

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` more would fit in the capacity."""
        return self.capacity_bytes is None or self.reserved_bytes + size_bytes <= self.capacity_bytes

    def reserve(self, size_bytes: int) -> int:
        """Return the address of a new range; raises BudgetError if the capacity does not allow it."""
        self._charge(size_bytes, calls=1)
        address = self._next
        self.ranges[address] = size_bytes
        # Never the same address twice, and never one that touches another range: blocks cannot merge across.
        self._next += align_up(size_bytes, PAGE_BYTES) + PAGE_BYTES
        return address

    def reserve_growing(self) -> int:
        """Return the address of a new, empty range with room to be extended in place."""
        address = self._next
        self.ranges[address] = 0
        self._next += _ROOM_BYTES
        return address

    def extend(self, address: int, size_bytes: int, *, calls: int = 1) -> None:
        """Lengthen a range in place, by `calls` calls of the driver; raises BudgetError beyond the capacity."""
        self._charge(size_bytes, calls)
        self.ranges[address] += size_bytes

    def release(self, address: int) -> None:
        """Give the whole range at `address` back."""
        self.reserved_bytes -= self.ranges.pop(address)

    def _charge(self, size_bytes: int, calls: int) -> None:
        if not self.has_room(size_bytes):
            needed = self.reserved_bytes + size_bytes
            raise BudgetError(
                f"the allocator cannot reserve {format_bytes(size_bytes)} more",
                why=f"{format_bytes(self.reserved_bytes)} of {self.capacity_bytes} bytes are reserved already",
                remedy=f"give it at least {format_bytes(needed)}",
                required_bytes=needed,
            )
        self.reserved_bytes += size_bytes
        self.allocations += calls
