"""Plans lie around storages that cannot move: the bytes of those are nobody else's, and there is a plan at all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.running import engine
from memfit.running.planned.around import Around
from running.plainly import same_bits
from running.planned.networks import WORKS
from running.planned.training import inside, train

STEPS = 30


def test_what_lies_above_everything_that_stays_is_in_the_zone():
    around = Around([(1000, 100, 7)])
    assert around.zone(300, {7}, 64) == (256, ((744, 100),))  # 100 of the 300 bytes are its own
    assert around.zone(300, set(), 64) == (320, ((680, 100),))


def test_what_lies_among_what_stays_takes_its_bytes_there():
    assert Around([(90, 50, 7), (900, 50, 8)]).zone(200, {7, 8}, 1) == (150, ((750, 50),))
    assert Around([(90, 50, 7), (900, 50, 8)]).zone(200, set(), 1) == (250, ((650, 50),))
    assert Around([(100, 50, 7), (300, 50, 8)], spare_bytes=100).zone(200, set(), 1) == (400, ())


SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20), st.booleans()), max_size=5)


@given(SPANS, st.integers(0, 200), st.integers(0, 50), st.sampled_from([1, 16]))
def test_there_is_room_below_the_zone_for_what_stays(rows, other, spare, alignment):
    spans, end = [], 0
    for block, (gap, size, _) in enumerate(rows):
        spans.append((end + gap, size, block))
        end += gap + size
    counted = {block for block, (*_, is_counted) in enumerate(rows) if is_counted}
    below = other + sum(size for _, size, block in spans if block in counted)
    begin, taken = Around(spans, spare).zone(below, counted, alignment)
    assert begin % alignment == 0
    inside = [(offset, size) for offset, size, _ in spans if offset >= begin]
    assert taken == tuple((offset - begin, size) for offset, size in inside)
    # Of one that begins below the zone, all bytes are counted there: it may end in it, and then has the zone refused.
    assert begin >= other + spare + sum(size for offset, size, _ in spans if offset < begin)


@pytest.mark.long
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("steady", "on_its_own")
@pytest.mark.unstressed("where storages lie")
@pytest.mark.parametrize("moves", ["swap", pytest.param("joint", marks=pytest.mark.slow)])
def test_training_has_a_plan_though_something_in_the_midst_of_the_arena_cannot_move(moves):
    """A buffer that is made before training and filled afterwards: until then nobody says what writes to it."""
    work = WORKS["convolutional"]
    plain = train(work, STEPS)
    with inside(moves, None) as session:
        train(work, 2)
    budget = int(0.8 * session.stats.peak_footprint_bytes)
    with inside(moves, budget, grow=False) as session:
        low = torch.zeros(budget // 8)  # half of the arena
        buffer = torch.empty(budget // 64)
        (offset, size, _) = engine.load().immovable()[0]
        assert budget // 4 < offset < budget // 2 + size
        del low
        limited = train(work, STEPS)
        assert engine.load().has_plan() and session.planned_iterations >= STEPS // 2
        assert offset in [place for place, *_ in engine.load().immovable()]
        buffer.fill_(3.0)
    assert same_bits(plain, limited) and buffer.unique().tolist() == [3.0]
    assert session.stats.swaps > 0 and session.stats.peak_footprint_bytes <= budget
