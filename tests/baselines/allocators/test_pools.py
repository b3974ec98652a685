"""What tells each pool from the others: rounding, splitting, growing, merging, and what is never shared."""

import pytest

from events_builder import KIB, MIB, stream
from memfit.baselines.allocators.bfc import Bfc
from memfit.baselines.allocators.cnmem import CnMem
from memfit.baselines.allocators.none import NoPool, whole_pages
from memfit.baselines.allocators.pytorch import PyTorchCaching
from memfit.baselines.allocators.pytorch_expandable import PyTorchExpandable
from memfit.baselines.allocators.replay import replay
from memfit.baselines.allocators.superneurons import SuperNeurons
from memfit.errors import BudgetError

GIB = 1 << 30


def reserved(allocator):
    return allocator.driver.reserved_bytes


def test_no_pool_rounds_and_gives_back():
    allocator = NoPool()
    address = allocator.malloc(513)
    assert reserved(allocator) == 1024
    allocator.free(address)
    assert reserved(allocator) == 0 and allocator.driver.allocations == 1
    pages = whole_pages()
    pages.malloc(1)
    pages.malloc(2 * MIB + 1)
    assert reserved(pages) == 6 * MIB


class TestCnMem:
    def test_the_first_block_is_there_from_the_start(self):
        allocator = CnMem(first_block_bytes=1000)
        assert (reserved(allocator), allocator.driver.allocations) == (1024, 1)

    def test_it_grows_by_what_is_asked_rounded_to_512(self):
        allocator = CnMem(512)
        allocator.malloc(513)
        assert (reserved(allocator), allocator.driver.allocations) == (512 + 1024, 2)

    def test_any_remainder_is_split_off(self):
        allocator = CnMem(1024)
        first = allocator.malloc(1)
        assert allocator.malloc(512) == first + 512
        assert reserved(allocator) == 1024

    def test_the_smallest_block_that_fits_and_the_lowest_of_equals(self):
        allocator = CnMem(20 * KIB)
        kept = [allocator.malloc(size * KIB) for size in (4, 1, 2, 1, 2, 10)]
        for index in (0, 2, 4):
            allocator.free(kept[index])
        assert allocator.malloc(2 * KIB) == kept[2]
        assert allocator.malloc(2 * KIB) == kept[4]
        assert allocator.malloc(2 * KIB) == kept[0]

    def test_neighbours_merge_before_and_after(self):
        allocator = CnMem(3 * KIB)
        a, b, c = (allocator.malloc(KIB) for _ in range(3))
        allocator.free(a)
        allocator.free(c)
        allocator.free(b)
        assert allocator.malloc(3 * KIB) == a
        assert reserved(allocator) == 3 * KIB

    def test_grown_blocks_are_kept_and_never_merge(self):
        allocator = CnMem(512)
        blocks = [allocator.malloc(KIB) for _ in range(2)]
        for address in blocks:
            allocator.free(address)
        allocator.malloc(2 * KIB)
        assert reserved(allocator) == 512 + KIB + KIB + 2 * KIB


class TestPyTorch:
    @pytest.mark.parametrize(
        ("size", "segment"),
        [
            (1, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 1, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            # Rounded up to 512 first, it is no less than 10 MiB.
            (10 * MIB - 1, 10 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 1, 12 * MIB),
        ],
    )
    def test_the_segment_a_request_opens(self, size, segment):
        allocator = PyTorchCaching()
        allocator.malloc(size)
        assert reserved(allocator) == segment

    def test_small_blocks_split_from_512_bytes_on(self):
        allocator = PyTorchCaching()
        first = allocator.malloc(MIB - 1)
        assert allocator.malloc(MIB - 512) == first + MIB
        assert allocator.malloc(512) == first + 2 * MIB - 512
        assert reserved(allocator) == 2 * MIB

    def test_large_blocks_split_only_above_a_mebibyte(self):
        allocator = PyTorchCaching()
        exactly, next_to_it = allocator.malloc(9 * MIB), allocator.malloc(9 * MIB)
        allocator.free(exactly)
        allocator.malloc(8 * MIB)  # 1 MiB is left of 9, and stays with it
        allocator.free(next_to_it)
        allocator.malloc(11 * MIB)
        assert reserved(allocator) == 20 * MIB
        other = PyTorchCaching()
        exactly, next_to_it = other.malloc(9 * MIB), other.malloc(9 * MIB)
        other.free(exactly)
        other.malloc(8 * MIB)
        other.free(next_to_it)
        other.malloc(12 * MIB)  # else 1 + 9 + 2 MiB were free in one
        assert reserved(other) == 32 * MIB

    def test_what_is_split_off_is_used(self):
        allocator = PyTorchCaching()
        exactly = allocator.malloc(9 * MIB)
        allocator.malloc(9 * MIB)
        assert reserved(allocator) == 20 * MIB
        allocator.malloc(MIB + 512)  # 2 MiB are left
        assert reserved(allocator) == 20 * MIB
        allocator.free(exactly)
        allocator.malloc(8 * MIB)  # 1 MiB is left of 9: not split off
        allocator.malloc(MIB + 512)
        assert reserved(allocator) == 40 * MIB

    def test_pools_are_not_shared(self):
        allocator = PyTorchCaching()
        allocator.free(allocator.malloc(9 * MIB))
        allocator.malloc(MIB)
        assert reserved(allocator) == 22 * MIB
        allocator.malloc(MIB + 1)
        assert reserved(allocator) == 22 * MIB

    def test_blocks_merge_within_a_segment_and_not_across(self):
        allocator = PyTorchCaching()
        blocks = [allocator.malloc(5 * MIB) for _ in range(8)]
        assert reserved(allocator) == 40 * MIB
        for address in blocks:
            allocator.free(address)
        assert allocator.malloc(20 * MIB) == blocks[0]
        allocator.malloc(21 * MIB)
        assert reserved(allocator) == 62 * MIB

    def test_nothing_goes_back_while_there_is_room(self):
        allocator = PyTorchCaching()
        allocator.free(allocator.malloc(GIB))
        assert reserved(allocator) == GIB

    def test_at_its_capacity_it_gives_back_free_segments_and_tries_again(self):
        allocator = PyTorchCaching(capacity_bytes=40 * MIB)
        kept = allocator.malloc(2 * MIB)
        allocator.free(allocator.malloc(20 * MIB))
        # The free segment of 20 MiB goes back; that of 20 MiB with 2 MiB in use stays.
        allocator.malloc(18 * MIB + 512)
        assert reserved(allocator) == 40 * MIB
        with pytest.raises(BudgetError, match="cannot reserve") as caught:
            allocator.malloc(30 * MIB)
        assert caught.value.required_bytes == 70 * MIB
        allocator.free(kept)

    def test_at_its_capacity_it_goes_on_with_what_is_left(self):
        allocator = PyTorchCaching(capacity_bytes=22 * MIB)
        allocator.free(allocator.malloc(20 * MIB))
        for _ in range(2):
            allocator.free(allocator.malloc(22 * MIB))
        assert reserved(allocator) == 22 * MIB
        assert allocator.driver.allocations == 2
        allocator.malloc(22 * MIB)
        with pytest.raises(BudgetError):
            allocator.malloc(20 * MIB)  # what went back is no longer there

    def test_a_segment_in_use_behind_a_free_block_stays(self):
        allocator = PyTorchCaching(capacity_bytes=20 * MIB)
        begin, kept = allocator.malloc(5 * MIB), allocator.malloc(5 * MIB)
        allocator.free(begin)
        with pytest.raises(BudgetError):
            allocator.malloc(11 * MIB)
        allocator.free(kept)
        assert allocator.malloc(20 * MIB) == begin


class TestExpandable:
    def test_it_maps_2_mib_for_small_and_20_mib_for_large_requests(self):
        allocator = PyTorchExpandable()
        allocator.malloc(1)
        assert reserved(allocator) == 2 * MIB
        allocator.malloc(21 * MIB)
        assert reserved(allocator) == 42 * MIB

    def test_a_block_may_span_what_was_mapped_at_two_times(self):
        allocator = PyTorchExpandable()
        first = allocator.malloc(15 * MIB)
        second = allocator.malloc(25 * MIB)  # 5 are mapped, 20 are missing
        assert second == first + 15 * MIB
        assert reserved(allocator) == 40 * MIB
        allocator.free(first)
        allocator.free(second)
        assert allocator.malloc(40 * MIB) == first
        assert allocator.driver.allocations == 2

    def test_large_blocks_split_from_512_bytes_on(self):
        allocator = PyTorchExpandable()
        first = allocator.malloc(20 * MIB - 1024)
        allocator.free(first)
        allocator.malloc(19 * MIB)
        assert allocator.malloc(MIB + 1) == first + 19 * MIB

    def test_any_other_block_comes_before_the_growing_end(self):
        allocator = PyTorchExpandable()
        hole, _ = allocator.malloc(8 * MIB), allocator.malloc(8 * MIB)
        allocator.free(hole)
        # 4 MiB are free at the end: the tighter fit, but it could grow.
        assert allocator.malloc(3 * MIB) == hole
        assert allocator.malloc(6 * MIB) == hole + 16 * MIB
        assert reserved(allocator) == 40 * MIB


class TestBfc:
    def test_regions_double(self):
        allocator = Bfc()
        allocator.malloc(1)
        assert reserved(allocator) == 2 * MIB
        allocator.malloc(2 * MIB)
        assert reserved(allocator) == 6 * MIB
        allocator.malloc(8 * MIB)
        assert reserved(allocator) == 14 * MIB

    def test_a_region_that_had_to_grow_for_its_request_is_not_doubled_after_it(self):
        allocator = Bfc()
        allocator.malloc(9 * MIB)
        assert reserved(allocator) == 16 * MIB
        allocator.malloc(16 * MIB)
        assert reserved(allocator) == 32 * MIB
        allocator.malloc(32 * MIB)
        assert reserved(allocator) == 64 * MIB

    def test_a_chunk_splits_when_twice_what_is_needed_and_not_below(self):
        allocator = Bfc()
        first = allocator.malloc(MIB + 1)  # 2 MiB is less than twice as much
        allocator.malloc(256)
        assert reserved(allocator) == 6 * MIB
        other = Bfc()
        first = other.malloc(MIB)
        assert other.malloc(1) == first + MIB
        assert other.malloc(1) == first + MIB + 256

    def test_more_than_128_mib_are_never_wasted(self):
        allocator = Bfc()
        first = allocator.malloc(384 * MIB)  # of 512 MiB
        assert allocator.malloc(1) == first + 384 * MIB
        wasteful = Bfc()
        wasteful.malloc(384 * MIB + 256)
        wasteful.malloc(1)
        assert reserved(wasteful) == 1024 * MIB

    def test_the_last_region_is_cut_to_the_capacity(self):
        allocator = Bfc(capacity_bytes=5 * MIB + 100)
        allocator.malloc(2 * MIB)
        allocator.malloc(MIB)
        assert reserved(allocator) == 5 * MIB
        with pytest.raises(BudgetError):
            allocator.malloc(4 * MIB)

    def test_chunks_coalesce(self):
        allocator = Bfc()
        blocks = [allocator.malloc(512 * KIB) for _ in range(4)]
        for index in (1, 3, 2, 0):
            allocator.free(blocks[index])
        assert allocator.malloc(2 * MIB) == blocks[0]
        assert reserved(allocator) == 2 * MIB


class TestSuperNeurons:
    def test_sizes_are_rounded_to_16_bytes(self):
        allocator = SuperNeurons()
        first = allocator.malloc(1)
        assert allocator.malloc(17) == first + 16
        assert reserved(allocator) == 48

    def test_first_fit_takes_the_lowest_hole_and_not_the_tightest(self):
        allocator = SuperNeurons()
        blocks = [allocator.malloc(size) for size in (64, 16, 32, 16)]
        allocator.free(blocks[0])
        allocator.free(blocks[2])
        assert allocator.malloc(32) == blocks[0]
        assert allocator.malloc(32) == blocks[0] + 32
        assert allocator.malloc(32) == blocks[2]

    def test_holes_merge_and_the_end_moves_back(self):
        allocator = SuperNeurons()
        blocks = [allocator.malloc(32) for _ in range(4)]
        for index in (0, 2, 1):
            allocator.free(blocks[index])
        assert allocator.malloc(96) == blocks[0]
        allocator.free(blocks[0])
        allocator.free(blocks[3])
        assert allocator.malloc(160) == blocks[0]
        assert reserved(allocator) == 160

    def test_it_is_one_block_however_long(self):
        events = stream(100, 200, 300)
        assert replay("superneurons", SuperNeurons(), events).driver_allocations == 1


def test_fragmentation_is_taken_where_reserved_is_at_its_peak_with_the_most_live_there():
    # Reserved: 20 MiB with 15 live, then 10 live, then 16 live. Small requests of 1 MiB + 1 keep within.
    events = stream(15 * MIB, "-0", 10 * MIB, "-1", 16 * MIB)
    outcome = replay("none", NoPool(), events)
    assert (outcome.footprint_bytes, outcome.fragmentation) == (16 * MIB, 0)
    outcome = replay("pytorch", PyTorchCaching(), stream(20 * MIB, "-0", MIB // 2, MIB))
    assert (outcome.footprint_bytes, outcome.peak_live_bytes) == (22 * MIB, 20 * MIB)
    assert outcome.fragmentation == pytest.approx(1 - 1.5 / 22)
    outcome = replay("pytorch", PyTorchCaching(), stream(4 * MIB, 4 * MIB, "-0", 8 * MIB))
    assert outcome.footprint_bytes == 20 * MIB
    assert outcome.fragmentation == pytest.approx(1 - 12 / 20)
    assert outcome.over_peak == pytest.approx(20 / 12 - 1)
    assert (outcome.calls, outcome.driver_allocations) == (4, 1)
