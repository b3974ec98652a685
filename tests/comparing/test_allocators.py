import numpy as np
import pytest

from events_builder import MIB, stream
from memfit.baselines.allocators import allocator_names
from memfit.comparing.allocators import CONTENDERS, choose_allocators, compare_allocators, memfit_packer
from memfit.errors import UsageError
from memfit.events import events_of_lifetimes, lifetimes_of_rows
from memfit.validate import check_placements

EVENTS = stream(4 * MIB, 4 * MIB, "-0", 8 * MIB)


def test_every_allocator_can_be_compared():
    assert set(allocator_names()) <= set(CONTENDERS)
    assert choose_allocators("all") == tuple(CONTENDERS)


def test_names_are_taken_once_and_in_their_order():
    assert choose_allocators(" pytorch,none ,pytorch,") == ("pytorch", "none")


@pytest.mark.parametrize(("text", "what"), [("none,nothing", "no allocator 'nothing'"), (" , ", "names no allocator")])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(text, what):
    with pytest.raises(UsageError, match=rf"{what}\n.*none, .*pytorch") as caught:
        choose_allocators(text)
    assert caught.value.remedy


def test_the_figures_with_the_smallest_footprint_first():
    comparison = compare_allocators("f.csv", EVENTS, ("pytorch", "none", "bfc"))
    assert (comparison.file, comparison.storages, comparison.calls) == ("f.csv", 3, 4)
    assert comparison.peak_live_bytes == 12 * MIB
    assert [row.allocator for row in comparison.rows] == ["none", "bfc", "pytorch"]
    pytorch = comparison.rows[2]
    assert pytorch.footprint_bytes == 20 * MIB
    assert pytorch.over_peak == pytest.approx(2 / 3)
    assert pytorch.fragmentation == pytest.approx(0.4)
    assert pytorch.driver_allocations == 1
    assert pytorch.us_per_call > 0


def test_equal_footprints_are_in_order_of_name():
    rows = compare_allocators("f", stream(512), ("superneurons", "none")).rows
    assert [row.allocator for row in rows] == ["none", "superneurons"]


def test_memfit_s_own_places_do_not_overlap_and_are_the_smallest():
    lifetimes = lifetimes_of_rows([("a", 0, 4, 3), ("b", 2, 6, 4), ("c", 4, 8, 3), ("d", 5, 9, 2), ("e", 0, 2, 0)])
    events = events_of_lifetimes(lifetimes)
    packed = memfit_packer(events)
    assert set(packed.offsets) == {0, 1, 2, 3}
    violation = check_placements(
        lower=lifetimes.lower[:4], upper=lifetimes.upper[:4], size_bytes=lifetimes.size[:4],
        offset_bytes=np.array([packed.offsets[i] for i in range(4)]), alignment=1,
    )  # fmt: skip
    assert violation is None
    rows = {row.allocator: row for row in compare_allocators("f", events, tuple(CONTENDERS)).rows}
    assert rows["memfit"].footprint_bytes == 9 == min(row.footprint_bytes for row in rows.values())
