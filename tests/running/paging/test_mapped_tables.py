"""memfit.map: a table of which each op uses a few rows stays in the tier, and is trained there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

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


def test_rows_that_every_step_uses_stay_and_the_others_come_in_once(paged):
    steps, hot, cold = 20, torch.arange(0, ROWS, 128), 40
    table = nn.Parameter(torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH) % 1013)
    optimizer = torch.optim.SGD([table], lr=0.1)
    with paged(BUDGET) as session:
        memfit.map(table)
        before, used = session.stats, set()
        for step in range(steps):
            rows = torch.cat([hot, torch.arange(cold) * 100 + step + 1])
            used.update(rows.tolist())
            F.embedding(rows, table, sparse=True).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        after = session.stats
    once = len(used) * WIDTH * 4
    assert after.mapped_bytes_in - before.mapped_bytes_in == once
    assert 0 < after.mapped_bytes_out - before.mapped_bytes_out < once  # the last are still there
    assert after.faults == before.faults


NAMING = {
    "embedding": lambda table, rows: F.embedding(rows, table),
    "embedding_bag": lambda table, rows: F.embedding_bag(rows.view(-1, 8), table, mode="sum"),
    "index_select": lambda table, rows: table.index_select(0, rows),
    "index": lambda table, rows: table[rows],
    "sparse_mask": lambda table, rows: table.sparse_mask(gradient(rows)).coalesce().values(),
    "add_": lambda table, rows: table.add_(gradient(rows))[0],
    "index_add_": lambda table, rows: table.index_add_(0, rows, gradient(rows).values())[0],
    "index_copy_": lambda table, rows: table.index_copy_(0, rows, gradient(rows).values())[0],
}


def gradient(rows: torch.Tensor) -> torch.Tensor:
    values = torch.ones(len(rows), WIDTH)
    return torch.sparse_coo_tensor(rows[None], values, (ROWS, WIDTH), is_coalesced=True, check_invariants=False)


@pytest.mark.parametrize("name", NAMING)
def test_rows_that_arguments_name_come_in_before_the_op_touches_them(name, paged):
    table = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH) % 1013
    rows = torch.arange(3, ROWS, ROWS // 48)[:48]
    plain = NAMING[name](table.clone(), rows)
    with paged(BUDGET) as session:
        memfit.map(table)
        table[0, 0].item()  # it is mapped now
        before = session.stats
        found = NAMING[name](table, rows)
        after = session.stats
        assert torch.equal(found, plain)
    assert after.mapped_bytes_in - before.mapped_bytes_in == len(rows) * WIDTH * 4
    assert after.faults == before.faults


def test_rows_of_another_op_under_way_are_not_taken_from_it(paged):
    table = torch.arange(ROWS * WIDTH, dtype=torch.float32).view(ROWS, WIDTH) % 1013
    rows = [torch.randperm(ROWS, generator=torch.Generator().manual_seed(seed))[:96] for seed in range(40)]
    expected = [table[some].sum().item() for some in rows]
    with paged(BUDGET):
        memfit.map(table)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda some: F.embedding(some, table).sum().item(), rows))
    assert found == expected


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


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(3, device="meta"), lambda: torch.ones(2, 2).to_sparse()], ids=["meta", "sparse"]
)
def test_what_has_no_memory_of_the_device_is_refused(paged, make):
    tensor = make()
    with paged(BUDGET), pytest.raises(UsageError, match="cannot be mapped"):
        memfit.map(tensor)


def test_without_a_session_or_in_one_that_never_maps_it_is_an_error(paged):
    with pytest.raises(UsageError, match="no memfit session is active"):
        memfit.map(torch.ones(2))
    with paged(BUDGET, when="never"), pytest.raises(UsageError, match="cannot be mapped"):
        memfit.map(torch.ones(2))
