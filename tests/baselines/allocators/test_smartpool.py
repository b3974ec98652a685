import pytest

from events_builder import DATA, looped, needs_data, stream
from memfit.baselines.allocators import run_allocator
from memfit.baselines.allocators.cnmem import CnMem
from memfit.baselines.allocators.replay import replay
from memfit.baselines.allocators.smartpool import Decision, detect, iteration_tokens, smartpool
from memfit.events import events_of_lifetimes
from memfit.files import load_paper_mallocs


def chained(count):
    """An iteration of 2 x `count` events: each storage is freed one malloc later, the last in the next iteration."""
    return tuple(step for k in range(count) for step in (1000 + k, f"-{k - 1}" if k else f"<{count - 1}"))


def stacked(count):
    """An iteration of 2 x `count` events: all is allocated, then all is freed."""
    return (*range(1000, 1000 + count), *(f"-{k}" for k in range(count)))


def test_tokens_are_sizes_and_distances():
    assert iteration_tokens(stream(70, 80, "-0", "-1", 90)).tolist() == [70, 80, 2, 2, 90]


def test_the_detector_looks_at_every_300th_event():
    # Event 2 frees what has lived 2 events; one iteration later it is 3, since the first has nothing to free at 1.
    assert detect(looped(*chained(52), times=40)) == Decision(event=299, start=3, length=104)


def test_the_detector_sits_in_malloc():
    # One event more before, and every 300th is a free.
    assert detect(looped(*chained(52), times=40, before=(7,))) is None


def test_several_iterations_are_cut_once():
    # 299, 599, 899 and 1199 are frees. At 1499 the longest repeat is 7 iterations, and in these 3.
    assert detect(looped(*stacked(52), times=40)) == Decision(event=1499, start=0, length=3 * 104)


def test_between_two_looks_the_stream_doubles():
    # 500 events that do not repeat, mallocs at odd ones: looks at 299 and 599, at 1199, and not at 899.
    noise = [10**6, *(step for k in range(1, 250) for step in (10**6 + k * k, f"-{k - 1}")), "-249"]
    decision = detect(stream(*noise, *shifted(looped(*chained(52), times=40), 250)))
    assert (decision.event, decision.length) == (1199, 104)


def test_an_iteration_inside_the_segment_begins_where_it_begins_there():
    # What is never freed has its size as its token: noise, then twice (10 events, twice the iteration of 101).
    noise, once = range(5000, 5176), (*range(10, 20), *range(100, 201), *range(100, 201))
    events = stream(*noise, *once, *once, *range(6000, 6100))
    assert detect(events) == Decision(event=599, start=186, length=101)


@pytest.mark.parametrize(
    ("mallocs", "decision"),
    # 100 are not enough at 299, nor at 599 where two iterations are cut to one; at 1199 five are cut to two.
    [(50, Decision(1199, 3, 200)), (51, Decision(299, 3, 102))],
)
def test_an_iteration_is_longer_than_100_events(mallocs, decision):
    assert detect(looped(*chained(mallocs), times=40)) == decision


def test_a_stream_that_ends_early_is_planned_as_it_is():
    packed = smartpool(stream(10, 20, "-0", 5, "-1", "-2"))
    assert (packed.begin, packed.end) == (0, 6)
    assert packed.offsets == {1: 0, 0: 20, 2: 20}
    assert packed.footprint_bytes == 30


def test_larger_first_then_earlier_and_the_smallest_gap_that_fits():
    # 90 | 50 | 20 leave, after 50 is gone, a gap of 50; after 90, one of 90 below it.
    events = stream(90, 30, 50, 10, 20, "-0", "-2", 40, "-1", "-3", "-4", "-5")
    packed = smartpool(events)
    assert packed.offsets[0] == 0 and packed.offsets[2] == 90
    assert packed.offsets[5] == 0  # 40 comes before 30 in size: nothing below it is taken yet
    assert packed.offsets[1] == 140


def test_best_fit_and_not_first_fit():
    # When 100 and 80 are gone, there is a gap of each below 90 and below 70.
    events = stream(100, 90, 80, 70, "-0", "-2", 60, "-1", "-3", "-4")
    assert smartpool(events).offsets == {0: 0, 1: 100, 2: 190, 3: 270, 4: 190}


def test_where_no_gap_fits_it_lies_right_above_those_that_live_then():
    # 70 meets 80 alone: that 90 once reached up to 190 does not matter.
    events = stream(100, 90, "-0", "-1", 80, 70, "-2", "-3")
    assert smartpool(events).offsets == {0: 0, 1: 100, 2: 0, 3: 80}


def test_what_crosses_into_the_next_iteration_has_two_slots():
    events = looped(100, 7, "-1", "<0", times=150)
    tail = stream(100, 7, "-1")
    packed = smartpool(tail)
    # Never freed in the window: [0, 100) twice, the other above.
    assert packed.offsets == {0: 0, 1: 200}
    assert packed.footprint_bytes == 207
    assert len(events.steps) == 4 * 150 - 1


def test_what_lives_throughout_lies_outside_at_its_exact_size():
    events = stream(333, 10, "-1", initial=1)
    assert smartpool(events).offsets == {1: 0, 0: 10}
    assert smartpool(events).footprint_bytes == 343


def test_the_last_instance_of_what_crosses_is_in_the_other_slot():
    # 50 is there before, freed, and allocated anew: two slots hold both. 60 has no successor: it lies outside.
    events = stream(50, 60, "-0", "-1", 50, initial=2)
    assert smartpool(events).footprint_bytes == 2 * 50 + 60
    # One slot is for one only.
    assert smartpool(stream(50, 50, "-0", "-1", 50, initial=2)).footprint_bytes == 2 * 50 + 50
    # What stays is not the last instance of anything.
    assert set(smartpool(stream(50, 50, "-1", 50, initial=2)).offsets) == {0, 2}


def test_every_iteration_can_run_by_the_table():
    events = looped(*chained(52), times=40)
    decision = detect(events)
    packed = smartpool(events)
    assert (packed.begin, packed.end) == (decision.start, decision.start + decision.length)
    check_run_time(events, decision, packed)


def check_run_time(events, decision, packed):
    """Replay what follows the decision by table[k mod L]; what crosses alternates between its slots."""
    window = events.steps[packed.begin : packed.end]
    crossing = {v for v in window if v >= 0 and ~v not in window}
    slot_bytes = sum(events.sizes[v] for v in crossing)
    turn, live = {}, {}
    for index in range(packed.end, len(events.steps)):
        step, planned = events.steps[index], window[(index - packed.begin) % decision.length]
        if step < 0:
            live.pop(~step, None)
            continue
        if planned < 0 or events.sizes[planned] != events.sizes[step]:
            return  # the last iteration ends otherwise
        begin = packed.offsets[planned]
        if planned in crossing:
            turn[planned] = not turn.get(planned, False)
            begin += slot_bytes * turn[planned]
        block = (begin, begin + events.sizes[step])
        assert all(block[1] <= a or b <= block[0] for a, b in live.values())
        live[step] = block


def test_a_repeated_part_of_one_iteration_is_not_taken_for_the_iteration():
    layers = looped(*chained(60), times=4)
    rest = stacked(500)[:500] + stacked(500)[:499:-1]
    events = stream(*shifted(layers, 0), *shifted(stream(*rest), len(layers.sizes)))
    assert detect(events) is not None
    packed = smartpool(events)
    assert (packed.begin, packed.end) == (0, len(events.steps))


def shifted(events, first):
    """The steps of `events` for `stream`, its first storage being number `first` there."""
    return [events.sizes[v] if v >= 0 else f"-{first + ~v}" for v in events.steps]


# Paper, table 1 (its MB are 2^20 bytes), and the authors' figures for the pool they compare with.
PUBLISHED = {
    "alexnet": (Decision(599, 201, 188), 178.88, 179.18, 1.00169, 1 << 20, 195.2, 13),
    "vgg": (Decision(5399, 2245, 1020), 640.70, 673.70, 1.05150, 256 << 20, 712.62, 65),
}


@needs_data
@pytest.mark.parametrize("net", sorted(PUBLISHED))
def test_the_published_figures(net):
    decision, peak, footprint, ratio, first_block, cnmem, grows = PUBLISHED[net]
    events = events_of_lifetimes(load_paper_mallocs(DATA / "paper" / f"cifar10_{net}_b100_mallocs.csv"))
    assert detect(events) == decision
    outcome = run_allocator("smartpool", events)
    assert outcome.calls == decision.length
    assert outcome.peak_live_bytes / 2**20 == pytest.approx(peak, abs=0.005)
    assert outcome.footprint_bytes / 2**20 == pytest.approx(footprint, abs=0.005)
    assert 1 + outcome.over_peak == pytest.approx(ratio, abs=5e-6)
    pool = replay("cnmem", CnMem(first_block), events)
    assert pool.footprint_bytes / 2**20 == pytest.approx(cnmem, abs=0.05 if net == "alexnet" else 0.005)
    assert pool.driver_allocations == grows
    check_run_time(events, decision, smartpool(events))
