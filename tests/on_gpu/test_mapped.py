"""Mapped storages on a GPU: the same bits below one op's working set, by both mechanisms."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F

import memfit
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.engine.tiers import TierSpec
from on_gpu.helpers_gpu import MIB, Watch, watched, workspace_bytes
from running.paging.workloads import LARGE, OTHERS, STREAMS, Work
from running.plainly import descend

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
MECHANISMS = ["zero-copy", "managed"]
PAGE = 2 * MIB


@contextmanager
def mapping(mechanism: str, budget: int, tier="ram", when: str = "auto"):
    """Begin a session in which storages are mapped by that mechanism ("": by whatever there is)."""
    with memfit.session(budget, tier, device="cuda", plan=False, map=when) as session:
        engine.load().set_mapping(when, mechanism)
        yield session


def bits(results) -> list[bytes]:
    return [result.detach().cpu().numpy().tobytes() for result in results]


def room() -> int:
    """Return a budget with room for what libraries keep, and half a large operand."""
    return -(-(workspace_bytes() + LARGE // 2) // PAGE) * PAGE


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("work", STREAMS + OTHERS, ids=lambda work: work.name)
def test_the_bits_are_the_same_below_the_working_set(work: Work, mechanism):
    expected = bits(work.run(*work.make()))
    if bits(work.run(*work.make())) != expected:
        pytest.skip("two plain runs differ")
    with mapping(mechanism, room()) as session:
        results = bits(work.run(*work.make()))
        stats = session.stats
    assert results == expected
    assert stats.mapped_ops > 0 and stats.growths == 0
    assert stats.peak_footprint_bytes <= room()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_driver_gives_out_no_more_than_the_budget(mechanism):
    work, budget = STREAMS[0], max(room(), 64 * MIB)
    large = -(-budget // LARGE)  # so many times the operands
    for _ in range(2):  # the driver has memory of its own for the first managed bytes
        with mapping(mechanism, budget) as session, watched() as watch:
            for _ in range(3):
                a, b = (torch.ones(large * LARGE // 4) for _ in range(2))
                (a + b).mul_(2)
            torch.cuda.synchronize()
    assert session.stats.mapped_ops > 0
    assert watch.peak_bytes <= budget + PAGE, work.name


def test_managed_memory_takes_no_pages_of_the_gpu_that_nobody_has_set_aside():
    """Which is what its advice is for: the preferred place is the host, and the GPU has it mapped."""
    count = 256 * MIB // 4
    with memfit.session(room(), TierSpec("ram", checked=True), device="cuda", plan=False, map="auto") as session:
        watch = Watch()
        a = torch.ones(count)
        for _ in range(5):
            a.add_(1)
            torch.cuda.synchronize()
            watch.look()
        assert a[-1].item() == 6
        assert session.stats.mapped_ops > 0 and session.stats.peak_frame_bytes == 0
        assert watch.peak_bytes <= room() + PAGE


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("tier", [TierSpec("ram"), TierSpec("ram", checked=True)], ids=["ram", "checked"])
def test_training_below_one_ops_working_set(mechanism, tier):
    if mechanism == "zero-copy" and tier.checked:
        pytest.skip("a tier that is checked is not reached")

    def trained() -> list[bytes]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 4096))
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

        def loss() -> torch.Tensor:
            return F.cross_entropy(net(torch.randn(4096, 256)), torch.randint(4096, (4096,)))

        losses = [each.detach() for each in descend(optimizer, loss, 6)]
        return bits([*losses, *net.parameters()])

    expected = trained()
    if trained() != expected:
        pytest.skip("two plain runs differ")
    with mapping(mechanism, workspace_bytes() + 48 * MIB, tier) as session:  # the logits have 64 MiB
        assert trained() == expected
    assert session.stats.mapped_ops > 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_table_of_many_budgets_is_trained_by_its_rows(mechanism):
    chosen = torch.randint(1 << 16, (4096,))

    def trained(table: torch.Tensor) -> list[bytes]:
        found = []
        for _ in range(4):
            picked = torch.index_select(table, 0, chosen)
            table.index_copy_(0, chosen, picked * 1.5)
            found.append(F.embedding(chosen, table).sum(1))
        return bits(found)

    def made() -> torch.Tensor:
        return (torch.arange(1 << 24, dtype=torch.float32) % 1013).view(1 << 16, -1)

    plain, table = made(), made()
    expected = trained(plain)
    with mapping(mechanism, workspace_bytes() + 16 * MIB) as session:
        memfit.map(table)
        assert trained(table) == expected
        assert session.stats.mapped_storages > 0
    assert torch.equal(plain, table)


def test_a_storage_larger_than_a_piece_of_locked_memory_is_reached_where_it_lies():
    with mapping("zero-copy", room()) as session:
        a = torch.ones(300 * MIB // 4)
        a.add_(1)
        a[::MIB].mul_(2)
        assert a[::MIB].amin().item() == 4 == a.amax().item() and a[1::MIB].amax().item() == 2 == a.amin().item()
        b = a.clone()
        assert torch.equal(b[-MIB:].cpu(), a[-MIB:].cpu())
        a.zero_()
        assert a.amax().item() == 0 and session.stats.mapped_ops > 0


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_other_streams_and_late_copies_see_what_was_written_through_a_mapping(mechanism):
    side = torch.cuda.Stream()
    with mapping(mechanism, room()):
        a = torch.zeros(LARGE // 2)
        for turn in range(20):
            torch.cuda._sleep(1_000_000)
            a.add_(1)
            with torch.cuda.stream(side):
                a.add_(1)
            parts = [part.clone() for part in a.split(MIB // 4)]
            assert {part[0].item() for part in parts} == {2.0 * turn + 2}


def test_never_is_an_error_that_names_the_op():
    with mapping("", room(), when="never"), pytest.raises(BudgetError, match=r"cannot be met: aten::"):
        torch.ones(2 * room() // 4).add(1)
