"""memfit.map: a table of which each op uses a few rows stays in the tier, and is trained there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memfit
from memfit.errors import UsageError

pytestmark = [pytest.mark.usefixtures("on_its_own"), pytest.mark.timeout(120)]
ROWS, WIDTH, BATCH, STEPS = 4096, 1024, 64, 6
BUDGET = ROWS * WIDTH * 4 // 8


def train(mapped=lambda table: table) -> list[float]:
    torch.manual_seed(0)
    table = nn.Parameter(torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH) % 1013)
    mapped(table)
    optimizer = torch.optim.SGD([table], lr=0.1)
    chosen = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(STEPS):
        rows = torch.randint(ROWS, (BATCH,), generator=chosen)
        loss = F.embedding(rows, table, sparse=True).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, float(table.detach()[::97].sum())]


def test_a_table_of_eight_budgets_is_trained_by_the_rows_it_uses(paged):
    expected = train()
    figures = []

    def mapped(table):
        memfit.map(table)
        figures.append(session.stats)

    with paged(BUDGET) as session:
        assert train(mapped) == expected
        figures.append(session.stats)
    before, after = figures
    touched = STEPS * BATCH * WIDTH * 4
    others = ROWS // 97 * WIDTH * 4 * 2 + (1 << 20)  # what is looked at in the end
    assert after.mapped_bytes_in - before.mapped_bytes_in <= 2 * touched + others
    assert after.mapped_bytes_out - before.mapped_bytes_out <= 2 * touched
    assert after.peak_footprint_bytes <= BUDGET


def test_on_a_ram_tier_the_tier_itself_is_the_table():
    expected = train()
    with memfit.session(BUDGET, "ram", plan=False) as session:
        assert train(memfit.map) == expected
    assert session.stats.faults == 0 and session.stats.bytes_in < ROWS * WIDTH


def test_a_table_made_before_the_session_can_be_mapped(paged):
    table = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH)
    rows = torch.arange(0, ROWS, 7)
    expected = torch.index_select(table, 0, rows).sum().item()
    with paged(BUDGET) as session:
        memfit.map(table)
        assert torch.index_select(table, 0, rows).sum().item() == expected
        assert session.stats.mapped_storages > 0
    assert table[-1, -1] == ROWS * WIDTH - 1


@pytest.mark.parametrize("tensor", [torch.ones(3, device="meta"), torch.ones(2, 2).to_sparse()], ids=["meta", "sparse"])
def test_what_has_no_memory_of_the_device_is_refused(paged, tensor):
    with paged(BUDGET), pytest.raises(UsageError, match="cannot be mapped"):
        memfit.map(tensor)


def test_without_a_session_or_in_one_that_never_maps_it_is_an_error(paged):
    with pytest.raises(UsageError, match="no memfit session is active"):
        memfit.map(torch.ones(2))
    with paged(BUDGET, when="never"), pytest.raises(UsageError, match="cannot be mapped"):
        memfit.map(torch.ones(2))
