"""AutoSwap's table, of its authors' scripts, on its own trace; scores and timeline by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.paper.autoswap import load, reproduce
from events_builder import needs_data
from memfit.machine import Link, Machine
from memfit.planning.autoswap.published import Absence, PaperTimes, aoa, doa, schedule, select, swdoa, wdoa

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 2000))  # a byte takes 1 us out, 2 us in


def events(load):
    times = np.arange(len(load), dtype=np.float64)
    return PaperTimes(times, times, np.array(load, dtype=np.int64), 0, len(load))


def test_scores_by_hand():
    found = events([5, 5, 9, 9, 5, 5])
    gaps = [Absence(0, 5, 1), Absence(1, 4, 2)]
    assert doa(found, gaps, LINK) == [2.0, -3.0]
    assert doa(found, gaps, LINK, count_in=False) == [4.0, 1.0]
    assert aoa(found, gaps, LINK) == [2.0, -1.5]
    assert wdoa(found, gaps, 8) == [2.0, 2.0]
    assert swdoa(found, gaps) == [2.0, 1.0]


def test_selection_stops_when_it_fits():
    found = events([5, 5, 9, 9, 5, 5])
    gaps = [Absence(0, 5, 1), Absence(1, 4, 2)]
    assert select(found, gaps, [0.0, 1.0], 7) == [gaps[1]]
    assert select(found, gaps, [1.0, 0.0], 7) == gaps


def test_a_copy_out_that_is_late_is_waited_for_and_delays_nothing():
    found = events([4, 4, 4, 8, 8, 8, 8, 4])
    late = schedule(found, [Absence(0, 7, 4)], LINK, 7, wait_for_room=False)[0]
    # It takes 4 us and so ends at event 4; the load passes the limit at 3: stall from event 2 to the end.
    assert (late.gone, late.stall_us) == (2, 2.0)
    # The copy in takes 8 us and so would begin with the gap; there is room from event 7 on only.
    waits = schedule(found, [Absence(0, 7, 4)], LINK, 7)[0]
    assert (waits.back, waits.stall_us) == (7, 2.0 + 6.0)


@needs_data
@pytest.mark.parametrize("limit", [280, 350, 420, 450, 520])
def test_the_cells_of_the_authors_scripts(limit):
    result = reproduce(load(), limit)
    reproduced = {name: round(value, 2) for name, value in result["reproduced"].items()}
    assert reproduced == result["authors"]
    if result["intended_wdoa_resimulated"] is not None:
        assert round(result["intended_wdoa"], 2) == result["intended_wdoa_resimulated"]
