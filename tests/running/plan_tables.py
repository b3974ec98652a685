"""The smallest plan as the engine is given it: an iteration of one op, which allocates 64 bytes in one slot."""

from __future__ import annotations

from memfit.running.engine import RemakeTableColumns, SwapTableColumns

SWAP_COLUMNS = tuple(SwapTableColumns.__annotations__)
NO_SWAPS: dict[str, list[int]] = {name: [] for name in SWAP_COLUMNS}
NO_REMAKES: dict[str, list[int]] = {name: [] for name in RemakeTableColumns.__annotations__}
GOOD = {"size": [64], "swap": [0], "again": [0], "mapped": [0], "temporary": [0], "slots": [1],
        "slot_offset": [0], "due_begin": [0, 0, 1], "due_take": [0], "due_periods_ago": [1],
        "op_begin": [0, 1]}  # fmt: skip
ONE_OP = NO_SWAPS | {"op_hashes": [7]}
