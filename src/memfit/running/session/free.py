"""The budget "auto": what is free on the device when a session begins, less a margin for what is not in the arena."""

from __future__ import annotations

import torch

from memfit import ranks
from memfit.errors import BudgetError, InputError
from memfit.messages import say_for_all
from memfit.running import host
from memfit.running.engine.devices import shares_host_memory
from memfit.running.engine.tiers import TierSpec
from memfit.units import Budget, format_bytes

_MARGIN = {"cpu": 10, "cuda": 20}  # the part of what is free that is left
_LEAST_MARGIN = {"cpu": 256 << 20, "cuda": 512 << 20}  # at least
"""On the CPU for Python's objects, libraries, copies under way, and memfit's recording and planning; on a GPU for
workspaces and kernels that are loaded later."""
_LEAST_BUDGET = 64 << 20
_STEPS = 32  # to double a budget: runs that find nearly as much free have the same one, and the same plan


def auto_budget(device: torch.device, tier: TierSpec) -> Budget:
    """Return what the arena may have, and say so in a line.

    Raises InputError for a tier on the CPU that takes memory without a bound, and BudgetError where hardly any is free.
    """
    sharers = ranks.local_world_size() if device.type == "cpu" else 1  # each rank has a GPU of its own
    free = _free_bytes(device) // sharers
    beside = _tier_bytes(device, tier)
    margin = _margin(device, free)
    budget = rounded(free - margin - beside)
    where = "memory" if device.type == "cpu" else f"{device}'s memory"
    if budget < _LEAST_BUDGET:
        raise _too_little(free, margin + beside, where)
    each = f" for each of {sharers} ranks" if sharers > 1 else ""
    for_tier = f" and {format_bytes(beside)} to the tier" if beside else ""
    say_for_all(
        f"memfit: the budget is {format_bytes(budget)}: {format_bytes(free)} of {where} are free{each}, of which at "
        f"least {format_bytes(margin)} are left to what is not in the arena{for_tier}"
    )
    return Budget(bytes=budget)


def rounded(size_bytes: int) -> int:
    """Return `size_bytes` rounded down by a few per cent at most, to one of few values; 0 for what is less."""
    step = 1 << max(max(size_bytes, 1).bit_length() - _STEPS.bit_length(), 0)
    return max(size_bytes // step * step, 0)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return host.available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    # What torch's own allocator has cached goes back to the device when the session begins.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    # To the driver of an integrated GPU the page cache is taken, and not what other processes may still ask for.
    return min(free, host.available_bytes()) if shares_host_memory(device) else free


def _margin(device: torch.device, free: int) -> int:
    """Return what is left to what is not in the arena: on an integrated GPU to the host's as well as to the GPU's."""
    kinds = {device.type, "cpu"} if shares_host_memory(device) else {device.type}
    return sum(max(free // _MARGIN[kind], _LEAST_MARGIN[kind]) for kind in kinds)


def _tier_bytes(device: torch.device, tier: TierSpec) -> int:
    """Return the bytes of the tier that are of the same memory."""
    if device.type != "cpu" or tier.kind != "ram":
        return 0
    if not tier.capacity_bytes:
        raise InputError(
            "the budget cannot be 'auto' with tier ram",
            why="on the CPU what leaves the arena goes to the same memory, and nobody knows how much that will be",
            remedy="--tier disk, or a bound for the tier: --tier ram:8GiB",
        )
    return tier.capacity_bytes


def _too_little(free: int, kept: int, where: str) -> BudgetError:
    return BudgetError(
        f"too little is free for a budget of 'auto': {format_bytes(free)} of {where}",
        why=f"{format_bytes(kept)} of that are left to what is not in the arena, and a budget has at least "
        f"{format_bytes(_LEAST_BUDGET)}",
        remedy="end other programs that use it, or give the budget in bytes: --budget 512MiB",
    )
