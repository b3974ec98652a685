"""Ranges cut into blocks, which best-fit allocators share: find, split and merge."""

from __future__ import annotations

from bisect import bisect_left, insort


class Blocks:
    """Blocks that tile address ranges. The free ones are found by size, then address; touching ones merge."""

    def __init__(self) -> None:
        self._size: dict[int, int] = {}
        self._begin_of_end: dict[int, int] = {}
        self._is_free: set[int] = set()
        self._free: list[tuple[int, int]] = []  # (size, address), sorted

    def size_of(self, address: int) -> int:
        """Return the bytes of the block at `address`."""
        return self._size[address]

    def find(self, size_bytes: int, *, passing_over: int | None = None) -> int | None:
        """Return the address of the smallest free block of at least `size_bytes`, the lowest of equals.

        The block at `passing_over` is not considered. None if there is no such block.
        """
        first = bisect_left(self._free, (size_bytes, 0))
        for _, address in self._free[first : first + 2]:
            if address != passing_over:
                return address
        return None

    def free_block_ending(self, end: int) -> int | None:
        """Return the address of the free block that ends at address `end`, or None."""
        begin = self._begin_of_end.get(end)
        return begin if begin in self._is_free else None

    def take(self, address: int) -> None:
        """Make the free block at `address` a used one."""
        self._remove_free(address)

    def split(self, address: int, size_bytes: int) -> None:
        """Cut the used block at `address` to `size_bytes`; the rest becomes a free block."""
        rest = self._size[address] - size_bytes
        self._set(address, size_bytes)
        self._set(address + size_bytes, rest)
        self._add_free(address + size_bytes)

    def add(self, address: int, size_bytes: int) -> None:
        """Add a free block, which merges with free ones that it touches."""
        self._set(address, size_bytes)
        self.free(address)

    def free(self, address: int) -> None:
        """Make the block at `address` free, and one with the free ones before and after it."""
        end = address + self._size[address]
        if end in self._is_free:
            self._remove_free(end)
            end += self._size.pop(end)
        before = self.free_block_ending(address)
        if before is not None:
            self._remove_free(before)
            del self._size[address]
            del self._begin_of_end[address]
            address = before
        self._set(address, end - address)
        self._add_free(address)

    def drop(self, address: int) -> None:
        """Forget the free block at `address`, whose range is given back."""
        self._remove_free(address)
        del self._begin_of_end[address + self._size.pop(address)]

    def is_free_whole(self, address: int, size_bytes: int) -> bool:
        """Return whether one free block covers exactly [address, address + size_bytes)."""
        return address in self._is_free and self._size[address] == size_bytes

    def _set(self, address: int, size_bytes: int) -> None:
        self._size[address] = size_bytes
        self._begin_of_end[address + size_bytes] = address

    def _add_free(self, address: int) -> None:
        self._is_free.add(address)
        insort(self._free, (self._size[address], address))

    def _remove_free(self, address: int) -> None:
        self._is_free.remove(address)
        del self._free[bisect_left(self._free, (self._size[address], address))]
