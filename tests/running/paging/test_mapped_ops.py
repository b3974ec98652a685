"""An op whose working set is larger than the budget runs on mapped storages: the same bits, within the budget."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.errors import BudgetError
from memfit.running.engine.tiers import TierSpec
from running.paging.workloads import BLOCKS, LARGE, OTHERS, STREAMS, Work
from running.pressure import peak_rss_bytes

pytestmark = [pytest.mark.usefixtures("on_its_own"), pytest.mark.timeout(120)]
SLACK = 256 << 10
by_each = pytest.mark.parametrize(
    "mechanism", ["userfaultfd", pytest.param("signals", marks=pytest.mark.long)], indirect=True
)
"""Page faults are told of by either mechanism; which chunks come and go is decided in one place."""


def plainly(work: Work) -> list[bytes]:
    return [result.detach().numpy().tobytes() for result in work.run(*work.make())]


def within(work: Work, begin, budget: int, **settings) -> tuple[list[bytes], memfit.Stats, memfit.Stats]:
    """Return the results' bytes, and the figures before the op and after it."""
    with begin(budget, **settings) as session:
        operands = work.make()
        before = session.stats
        results = work.run(*operands)
        after = session.stats
        return [session.read_bytes(result.untyped_storage()) for result in results], before, after


@pytest.mark.long
@pytest.mark.parametrize("work", STREAMS + OTHERS, ids=lambda work: work.name)
def test_the_bits_are_the_same_in_a_quarter_of_the_working_set(work, paged):
    expected = plainly(work)
    operands = sum(operand.nbytes for operand in work.make())
    budget = max((operands + sum(map(len, expected))) // 4, 3 << 20)
    results, _, stats = within(work, paged, budget)
    assert results == expected
    assert stats.mapped_ops > 0 and stats.faults > 0
    assert stats.peak_footprint_bytes <= budget and 0 < stats.peak_frame_bytes <= budget
    assert stats.growths == 0


@by_each
@pytest.mark.parametrize("work", STREAMS, ids=lambda work: work.name)
def test_a_stream_moves_each_byte_once(work, paged):
    expected = plainly(work)
    inputs = sum(operand.nbytes for operand in work.make())
    results, before, after = within(work, paged, LARGE // 2)
    assert results == expected
    came = after.mapped_bytes_in - before.mapped_bytes_in + after.bytes_in - before.bytes_in
    went = after.mapped_bytes_out - before.mapped_bytes_out + after.bytes_out - before.bytes_out
    assert came <= inputs + SLACK
    assert went <= sum(map(len, expected)) + SLACK


@by_each
@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("work", BLOCKS, ids=lambda work: work.name)
def test_what_an_op_goes_over_in_blocks_comes_in_a_few_times(work, is_known, paged):
    expected = plainly(work)
    size = sum(operand.nbytes for operand in work.make()) + sum(map(len, expected))
    with paged(size // 2) as session:
        operands = work.make()
        if is_known:
            work.run(*operands)
        before = session.stats
        results = work.run(*operands)
        after = session.stats
        assert [session.read_bytes(result.untyped_storage()) for result in results] == expected
    assert after.mapped_ops > before.mapped_ops
    # How often it reads them again, if at all, is its library's affair on this processor.
    assert after.mapped_bytes_in - before.mapped_bytes_in < 4 * size


def test_a_table_is_read_by_rows(paged):
    work = next(work for work in OTHERS if work.name == "embedding")
    table, rows = work.make()
    _, before, after = within(work, paged, 3 << 20)
    assert after.mapped_bytes_in - before.mapped_bytes_in <= 2 * 4096 * len(rows) < table.nbytes


@pytest.mark.parametrize("work", [STREAMS[0], STREAMS[4], OTHERS[0]], ids=lambda work: work.name)
def test_a_tier_in_memory_is_read_and_written_where_it_is(work):
    with memfit.session(3 << 20, "ram", plan=False) as session:
        results = [session.read_bytes(result.untyped_storage()) for result in work.run(*work.make())]
    assert results == plainly(work)
    assert session.stats.mapped_ops > 0 and session.stats.faults == 0 == session.stats.peak_frame_bytes
    assert session.stats.peak_footprint_bytes <= 3 << 20


def test_bytes_of_a_checked_tier_are_checked(tmp_path, paged):
    work = STREAMS[0]
    results, _, stats = within(work, paged, LARGE // 2, tier=TierSpec("disk", str(tmp_path), checked=True))
    assert results == plainly(work) and stats.mapped_ops > 0


def test_an_op_that_fits_maps_nothing(paged):
    with paged(64 << 20) as session:
        a = torch.ones(1 << 20)
        assert torch.equal(a + a, torch.full((1 << 20,), 2.0))
    assert session.stats.mapped_storages == 0 == session.stats.peak_frame_bytes


def test_frames_are_given_back_after_the_op(paged):
    with paged(LARGE // 2) as session:
        kept = STREAMS[0].run(*STREAMS[0].make())
        assert session.stats.frame_bytes == 0 < session.stats.peak_frame_bytes
        small = torch.ones(LARGE // 2 // 4 - (64 << 10))  # all the rest of the arena
        assert session.stats.mapped_ops == session.stats.mapped_ops and small.sum() == small.numel()
        assert len(kept) == 1


def test_the_process_takes_no_more_than_the_budget_by_the_kernels_count(paged):
    count, budget = 6 << 20, 24 << 20
    a, b = torch.arange(count, dtype=torch.float32), torch.ones(count)
    expected = (a + b).sum().item()
    with paged(budget) as session:  # both have left for the tier
        peak_rss_bytes()
        before = peak_rss_bytes()
        for _ in range(2):
            c = a + b
        assert session.stats.mapped_ops >= 2 and session.stats.frame_bytes == 0
        assert peak_rss_bytes() - before <= budget + (4 << 20) < 3 * 4 * count
        assert c.sum().item() == expected


def test_never_makes_it_an_error_that_names_the_op(paged):
    with pytest.raises(BudgetError, match=r"aten::arange"), paged(LARGE // 2, when="never"):
        STREAMS[0].make()


@pytest.mark.long
def test_what_it_costs_is_said_once(paged, capfd):
    with paged(LARGE // 2):
        for _ in range(3):
            STREAMS[0].run(*STREAMS[0].make())
    said = [line for line in capfd.readouterr().err.splitlines() if "mapped storages" in line]
    assert len(said) == 1 and "aten::arange needs 8.00 MiB" in said[0] and "--map never" in said[0]


def test_bytes_read_from_outside_of_ops_come_in_first(paged, tmp_path):
    with paged(LARGE + (2 << 20)) as session:
        a = torch.arange(LARGE // 4, dtype=torch.float32)
        b = a + 1  # two of them do not fit
        assert session.stats.mapped_ops > 0
        del a
        torch.save(b, tmp_path / "b.pt")
        assert b.numpy()[-1] == LARGE // 4
    assert torch.equal(torch.load(tmp_path / "b.pt"), b)


def test_always_maps_whatever_may_be(paged):
    work = OTHERS[0]
    results, _, stats = within(work, paged, 64 << 20, when="always")
    assert results == plainly(work) and stats.mapped_storages > 0


def test_an_op_that_hands_on_what_it_is_given_or_reads_it_is_mapped_where_it_reads(paged):
    work = Work("to", STREAMS[1].make, lambda a: (a.to(torch.float16), a.to(torch.float32)))
    results, before, after = within(work, paged, LARGE // 2)
    assert results == plainly(work)
    assert after.mapped_ops > before.mapped_ops


@by_each
def test_an_op_that_is_mapped_since_it_finds_no_place_does_not_count_to_the_footprint(paged):
    """Its last resort is the shelf, which is asked whether it has room; nothing is taken there to find out."""
    budget = 8_000_000
    with paged(budget, grow=True) as session:
        doubled = torch.ones(1000) * 2
        made = torch.ones(2 * budget, dtype=torch.uint8)
        stats = session.stats
    assert torch.equal(doubled, torch.full((1000,), 2.0)) and bool((made == 1).all())
    assert stats.mapped_ops > 0 == stats.growths
    assert stats.peak_resident_bytes <= stats.peak_footprint_bytes <= budget


@by_each
@pytest.mark.parametrize("budget", range(4_300_000, 4_900_000, 100_000))
def test_what_makes_more_than_calls_of_the_same_shapes_did_is_mapped_too(budget, paged):
    gradient, images, weight = (
        torch.arange(float(torch.Size(shape).numel())).remainder(1009).view(shape)
        for shape in ((64, 32, 16, 16), (64, 1, 32, 32), (32, 1, 4, 4))
    )

    def backward(*wanted: bool) -> list[torch.Tensor]:
        made = torch.ops.aten.convolution_backward(
            gradient, images, weight, [0], [2, 2], [1, 1], [1, 1], False, [0, 0], 1, wanted
        )
        return [each for each in made if each is not None]

    few, more = (False, True, False), (True, True, False)
    expected = [*backward(*few), *backward(*more)]
    with paged(budget) as session:
        found = [*backward(*few), *backward(*few), *backward(*more)][1:]
        stats = session.stats
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert stats.peak_footprint_bytes <= budget and stats.growths == 0
