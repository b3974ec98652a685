"""What is in memory of arena and page frames together is never more than the budget, by the system's own count."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import memfit
from benchmarks.common.resident import Resident
from running.paging.workloads import LARGE, OTHERS, STREAMS, Work

pytestmark = [pytest.mark.usefixtures("on_its_own"), pytest.mark.timeout(120)]
BUDGET = LARGE // 2


@pytest.mark.parametrize("work", [STREAMS[0], STREAMS[4], *OTHERS[2:5]], ids=lambda work: work.name)
def test_ops_on_mapped_storages_stay_within_the_budget(work: Work, paged):
    with paged(BUDGET) as session, Resident().watching() as seen:
        small = torch.ones(BUDGET // 8)  # half of the budget, in the arena until an op needs the room
        seen.look()
        operands = work.make()
        for _ in range(20):  # one may be over before anybody looks
            work.run(*operands)
            if seen.peak_frame_bytes > 0 and seen.peak_bytes > BUDGET // 2:
                break
        assert session.stats.mapped_ops > 0 and small.sum() == len(small)
    is_seen = seen.peak_frame_bytes > 0 and seen.peak_bytes > BUDGET // 2
    assert seen.looks > 1 and (is_seen or work.name == "embedding")  # which may be over before anybody looks
    assert seen.peak_frame_bytes <= BUDGET and seen.peak_bytes <= BUDGET


def test_a_table_that_stays_mapped_is_within_the_budget(paged):
    table = torch.arange(2 * LARGE // 4, dtype=torch.float32).view(-1, 1024).requires_grad_()
    rows = torch.randint(len(table), (20, 64), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD([table], lr=0.1)
    with paged(LARGE // 4) as session, Resident().watching() as seen:
        memfit.map(table)
        for some in rows:
            F.embedding(some, table, sparse=True).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert session.stats.peak_frame_bytes == LARGE // 16
        seen.look()
    assert LARGE // 32 < seen.peak_frame_bytes <= LARGE // 16
    assert seen.peak_bytes <= LARGE // 4
