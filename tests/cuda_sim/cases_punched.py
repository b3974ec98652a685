"""What must hold where holes are punched. Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py)."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager

import torch

import memfit
from cuda_sim.simulator import Gpu
from running.cutting import UNIT, are_full, cut_up, full, sizes

BUDGET = 132 * UNIT["cuda"]


def within(gpu: Gpu, budget: int = BUDGET) -> AbstractContextManager[memfit.Session]:
    torch.cuda.empty_cache()
    gpu.reset_peak()
    return memfit.session(
        budget, "ram", device="cuda", plan=False, map="never", split="never", grow=False, moves="swap"
    )


def what_comes_back_from_beyond_has_its_memory_in_one_place(gpu: Gpu) -> None:
    """What lies in its way slides first, which has other addresses then, and no more memory either."""
    for sizes[:], moves in (([40, 52, 77], 2), ([20, 24, 98], 2), ([64, 4, 120], 2)):
        with within(gpu) as session:
            kept = cut_up(torch.ones(1, device="cuda"))
            assert session.stats.punches == 1 and gpu.count("peak") <= BUDGET
            assert are_full(kept) and session.stats.relocations == moves
            assert session.stats.footprint_bytes < BUDGET and gpu.count("peak") <= BUDGET
            assert session.stats.evictions == session.stats.growths == 0
        assert are_full(kept)
        del kept


def what_is_on_its_way_back_when_the_gpu_is_full_leaves(gpu: Gpu) -> None:
    """Others take the memory that a piece has given up: what has moved, and what has not, goes to the tier."""
    sizes[:] = [20, 24, 98]
    left = set()
    for pieces in range(0, 320, 24):
        with within(gpu) as session:
            x = torch.ones(1, device="cuda")
            kept = cut_up(x)
            gpu.allow_pieces(pieces)
            x + 1
            left.add(session.stats.bytes_out // UNIT["cuda"])
            gpu.allow_pieces(-1)
            assert are_full(kept) and session.stats.growths == 0
        assert are_full(kept)
        del kept
    assert left >= {0, 98, 98 + 24}, left


def the_driver_s_memory_stays_within_the_budget_whatever_is_cut_up(gpu: Gpu) -> None:
    punches = 0
    for seed in range(12, 24):
        draw = random.Random(seed)
        with within(gpu) as session:
            alive = [full(draw.randint(1, 12), "cuda") for number in range(draw.randint(0, 12))]
            alive = draw.sample(alive, len(alive) // 2)
            free = 126 - sum(tensor.numel() * 4 // UNIT["cuda"] for tensor in alive)
            sizes[:] = [draw.randint(1, free // 3), draw.randint(1, free // 3)]
            sizes.append(draw.randint((free - sizes[1]) // 2, free - sizes[1]))
            alive += cut_up(torch.ones(1, device="cuda"))
            punches += session.stats.punches
            assert are_full(alive), seed
            alive.append(full(draw.randint(1, 40), "cuda"))
            assert are_full(alive), seed
            assert gpu.count("peak") <= BUDGET and session.stats.growths == 0, seed
        alive.clear()
    assert punches > 3
