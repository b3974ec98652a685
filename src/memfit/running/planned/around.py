"""What a plan has to lie around: storages in the arena that cannot move, as a raw pointer to them is out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from memfit.ir import align_up

Place = tuple[int, int]
"""An offset and a size (bytes)."""


@dataclass(frozen=True)
class Around:
    """The immovable storages beyond the shelf, each with its offset in the arena, its size (bytes) and its block.

    `spare_bytes` are left free below the zone, beside what stays there.
    """

    spans: Sequence[tuple[int, int, int]]
    spare_bytes: int = 0

    def zone(self, below_bytes: int, counted: Collection[int], alignment: int) -> tuple[int, tuple[Place, ...]]:
        """Return where a plan's zone begins, and what lies in it, by offset in the zone.

        `below_bytes` is what has to lie below the zone, the immovable storages that are `counted` (by block) among it:
        those that lie in the zone do not have to.
        """
        inside = sorted(self.spans)
        while True:
            own = sum(size for _, size, block in inside if block in counted)
            begin = align_up(max(below_bytes - own, 0) + self.spare_bytes, alignment)
            if not inside or inside[0][0] >= begin:
                return begin, tuple((offset - begin, size) for offset, size, _ in inside)
            if inside[0][2] not in counted:
                below_bytes += inside[0][1]
            inside = inside[1:]
