"""Planned mode: addresses from a table, the same bits, and no byte given out twice whatever the program does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.running import engine
from memfit.running.planned import planner, wanted
from running.plainly import as_plainly, same_bits, train_by_hand
from running.plan_tables import GOOD, NO_REMAKES, NO_SWAPS, ONE_OP, SWAP_COLUMNS
from running.planned.training import wait_for_plans

pytestmark = pytest.mark.timeout(120)

STEPS = 10  # one shows the optimizer, two are alike; the rest are planned


def training(steps: int = STEPS, batch: Callable[[int], int] = lambda step: 32, keep: list | None = None) -> list:
    """Train a small network; returns losses and final weights."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(m for _ in range(4) for m in (torch.nn.Linear(64, 64), torch.nn.ReLU())))
    optimizer = torch.optim.Adam(net.parameters())
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        out = net(torch.randn(batch(step), 64))
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if keep is not None and step % 3 == 0:
            keep.append(out.detach())
    return [torch.tensor(losses), *(p.detach() for p in net.parameters())]


@pytest.mark.copied("what a plan places: re-runs are not in it")
def test_a_repeating_iteration_is_planned_and_gives_the_same_bits():
    stats = as_plainly(training, None, "ram").stats
    assert stats.plans == 1 and stats.plan_mismatches <= 1  # the losses, made after the last step, are not planned
    assert stats.planned_allocations >= 4 * (stats.allocations // STEPS) // 2


@pytest.mark.unstressed("how often storages leave")
def test_no_more_is_evicted_than_what_lies_in_the_plan_s_zone():
    stats = as_plainly(training, None, "ram").stats
    assert stats.plans == 1 and stats.evictions <= 64  # once


def test_without_planning_there_is_no_plan():
    stats = as_plainly(training, None, "ram", plan=False).stats
    assert stats.plans == stats.planned_allocations == 0


@pytest.mark.unstressed("what lies where a plan put it")
def test_the_footprint_is_the_plan_s():
    def start_peaks_anew(step: int) -> int:
        if step == STEPS - 1:  # what was alive when the plan took over is gone by now
            engine.load().reset_peaks()
        return 32

    with memfit.session(None, "ram") as session:
        training(STEPS + 4, start_peaks_anew)
        stats = session.stats
    after_the_last_step = 64  # the losses as a tensor, beside the zone
    assert 0 <= stats.peak_footprint_bytes - stats.planned_footprint_bytes <= after_the_last_step
    # What recurs lies below the zone, packed; the peak of live bytes is the least that any placement needs.
    assert stats.peak_live_bytes <= stats.peak_footprint_bytes <= 1.02 * stats.peak_live_bytes + 4096


@pytest.mark.copied("what a plan places: re-runs are not in it")
def test_a_loop_without_an_optimizer_is_planned_by_its_period():
    stats = as_plainly(lambda: train_by_hand(120), None, "ram").stats
    assert stats.plans == 1 and stats.planned_allocations > stats.allocations // 4
    assert stats.plan_mismatches < stats.planned_allocations // 100


@pytest.mark.copied("what a plan places: re-runs are not in it")
def test_a_budget_the_plan_fits_into_moves_nothing_once_it_is_in_force():
    with memfit.session(None, "ram") as session:
        training()
        needed = session.stats.peak_footprint_bytes
    with memfit.session(needed + (1 << 16), "ram") as session:
        planned = training(STEPS + 8)
        stats = session.stats
    assert stats.plans == 1 and stats.peak_footprint_bytes <= stats.budget_bytes
    assert same_bits(planned, training(STEPS + 8))


@pytest.mark.unstressed("what lies where a plan put it")
def test_below_the_plan_swaps_are_planned():
    stats = as_plainly(training, "60%", "ram").stats
    # On a busy machine copies take longer than foreseen, and the plan is made anew.
    assert stats.plans >= 1 and stats.prefetches > 0 and stats.plan_mismatches <= stats.plans
    assert stats.peak_footprint_bytes <= stats.budget_bytes


@pytest.mark.copied("what a plan places: re-runs are not in it")
def test_each_swap_names_the_take_with_which_its_bytes_come_back(monkeypatch):
    ended = as_plainly(lambda: training(40), "60%", "ram")
    plan = ended.compressed_plan.plan()
    ended_by = plan.addresses.columns["swap"]
    back = {number: take for number, take in enumerate(plan.swaps["take"], 1) if take}
    assert back and all(ended_by[take - 1] == number for number, take in back.items())
    assert [number in back for number in range(1, len(plan.plan.swaps) + 1)] == [s.returns for s in plan.plan.swaps]


@pytest.mark.long
def test_an_iteration_whose_plan_finds_no_room_is_planned_again_for_less(monkeypatch):
    wait_for_plans(monkeypatch)  # otherwise the training may be over before there is another one
    asked, attempts = [], []
    make, put = wanted.make_engine_plan, planner.Planner._put_in_force
    monkeypatch.setattr(wanted, "make_engine_plan", lambda *args, **_: asked.append(args[1]) or make(*args))

    def refuse_at_first(self, *args) -> bool:
        attempts.append(len(asked))
        return len(attempts) > planner._STRIKES and put(self, *args)

    monkeypatch.setattr(planner.Planner, "_put_in_force", refuse_at_first)
    stats = as_plainly(lambda: training(200), "60%", "ram").stats
    assert attempts[: planner._STRIKES + 1] == [*[1] * planner._STRIKES, 2]
    assert stats.plans >= 1 and asked[1] == asked[0] - asked[0] // 32


def test_an_iteration_that_finds_no_plan_is_told_and_tried_again_after_a_while(monkeypatch, capsys):
    asked = []
    wait_for_plans(monkeypatch)
    monkeypatch.setattr(wanted, "make_engine_plan", lambda *args, **_: asked.append(args[1]))
    ended = as_plainly(lambda: training(50), "60%", "ram", moves="swap")
    assert ended.stats.plans == 0 and ended.unplanned == ("none was found that fits the budget",)
    assert capsys.readouterr().err.count("run without a plan (none was found that fits the budget); memfit tries") == 1
    times, rest = divmod(len(asked), planner._ATTEMPTS)
    assert times == 2 and not rest  # of 50 iterations: the second wait is longer
    assert asked[: planner._ATTEMPTS] == asked[planner._ATTEMPTS :] == sorted(set(asked), reverse=True)


def test_an_iteration_that_found_no_room_has_a_plan_when_there_is_room_again(monkeypatch, capsys):
    wait_for_plans(monkeypatch)  # otherwise the training may be over before there is another one
    put, refused = planner.Planner._put_in_force, []

    def refuse_at_first(self, *args) -> bool:
        refused.append(len(refused) < planner._STRIKES * planner._ATTEMPTS)
        return not refused[-1] and put(self, *args)

    monkeypatch.setattr(planner.Planner, "_put_in_force", refuse_at_first)
    ended = as_plainly(lambda: training(140), "60%", "ram", moves="swap")
    assert "the other live storages leave no room for it" in capsys.readouterr().err
    assert ended.stats.plans >= 1 and ended.unplanned == () and ended.planned_iterations > 10


def test_another_batch_size_is_a_mismatch_and_gives_the_same_bits():
    def sizes(step: int) -> int:
        return 20 if step in (7, 12) else 32

    stats = as_plainly(lambda: training(16, sizes), None, "ram").stats
    assert stats.plan_mismatches > 0 and stats.plans == 1 and stats.planned_allocations > 0


@pytest.mark.copied("what a plan places: re-runs are not in it")
def test_a_new_shape_for_good_is_planned_anew():
    stats = as_plainly(lambda: training(30, lambda step: 32 if step < 10 else 48), None, "ram").stats
    assert stats.plans == 2
    at_the_end = stats.plan_mismatches
    assert at_the_end < 10 * (stats.allocations // 30)  # it matches again


def test_tensors_that_outlive_their_time_are_not_overwritten():
    kept_plain: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    plain = training(14, keep=kept_plain)
    with memfit.session(None, "ram"):
        assert same_bits(plain, training(14, keep=kept))
        assert same_bits(kept_plain, kept)


def test_training_goes_on_reactively_when_the_unplanned_has_no_room():
    """An evaluation in between, with no room beside the plan's zone: the plan is dropped, not the training."""

    def run() -> list[torch.Tensor]:
        first = training(STEPS)
        big = [torch.full((1 << 14,), float(i)) for i in range(64)]  # 4 MiB
        return [*first, torch.stack([b.sum() for b in big])]

    plain = run()
    with memfit.session(None, "ram") as session:
        training()
        needed = session.stats.peak_footprint_bytes
    with memfit.session(needed + (1 << 16), "ram") as session:
        assert same_bits(plain, run())
        assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


# -- the table itself -------------------------------------------------------------------------------------------

UNIT = 64


class Table:
    """A plan made by hand: allocation k has `size` units and is freed before allocation `upper`, first fit."""

    def __init__(self, once: list[tuple[int, int]], iterations: int = 1, ops: Sequence[str] = ()) -> None:
        self.once, self.iterations = once, iterations
        self.ops = ops or FILLED * len(once)
        self.rows = rows = once * iterations
        count = len(rows)
        busy: list[tuple[int, int, set[int]]] = []
        self.slots, self.offsets = [], []
        for k, (size, life) in enumerate(rows):
            instances = -(-life // count)
            times = set(range(count)) if instances > 1 else {t % count for t in range(k, k + life)}
            self.slots.append(instances)
            for _ in range(instances):
                offset = 0
                for begin, end, others in sorted(busy, key=lambda b: b[0]):
                    if others & times and begin < offset + size:
                        offset = max(offset, end)
                self.offsets.append(offset)
                busy.append((offset, offset + size, times))
        self.zone = max(end for _, end, _ in busy)
        due = sorted(((k + life) % count, k, (k + life) // count) for k, (_, life) in enumerate(rows))
        self.due_begin = [sum(1 for d in due if d[0] < k) for k in range(count + 1)] + [len(due)]
        self.due_take, self.due_ago = [d[1] for d in due], [d[2] for d in due]

    def use(self, zone_offset: int | None = None, swaps: dict[str, list[int]] = NO_SWAPS, **changed: list[int]) -> bool:
        bytes_ = [size * UNIT for size, _ in self.rows]
        offsets = [offset * UNIT for offset in self.offsets]
        none = [0] * len(bytes_)
        each = max(len(self.ops) // len(self.once), 1)
        op_begin = [(op + each - 1) // each for op in range(len(self.ops) + 1)]  # the first of each allocates
        columns = {"size": bytes_, "swap": none, "again": none, "mapped": none, "temporary": none, "slots": self.slots,
                   "slot_offset": offsets, "due_begin": self.due_begin, "due_take": self.due_take,
                   "due_periods_ago": self.due_ago, "op_begin": op_begin}  # fmt: skip
        ops = {"op_hashes": [engine.load().op_hash(name, True) for name in self.ops]}
        zone = self.zone * UNIT
        return bool(engine.load().use_plan(columns | changed, zone, self.iterations, swaps | ops, NO_REMAKES, [], True,
                                           zone_offset=zone_offset))  # fmt: skip


FILLED = ("aten::empty.memory_format", "aten::fill_.Scalar")  # the ops of `filled`


def filled(size: int, value: int) -> torch.Tensor:
    """A tensor of `size` units, made with exactly one allocation, that holds `value`."""
    tensor = torch.empty(size * UNIT // 8, dtype=torch.int64)
    return tensor.fill_(value)


def contents(tensor: torch.Tensor) -> set[int]:
    """The values in a tensor, read without an op: an op would allocate."""
    return set(np.frombuffer(engine.load().read_bytes(tensor, 0, tensor.nbytes), np.int64).tolist())


def run_iterations(rows: list[tuple[int, int]], deviations: list[list[tuple[int, str, int]]]) -> None:
    """Allocate and free as the rows say, but for the deviations; every tensor keeps its own bytes to its end."""
    alive: list[tuple[int, int, torch.Tensor]] = []  # (time of its end, value, tensor)
    count, value = len(rows), 0
    for iteration, changes in enumerate(deviations):
        for k, (size, life) in enumerate(rows):
            now = iteration * count + k
            mine = [(what, by) for at, what, by in changes if at % count == k]
            alive = [entry for entry in alive if entry[0] > now]
            late = sum(by for what, by in mine if what == "late")
            if any(what == "skip" for what, _ in mine):
                continue
            for what, by in mine:
                if what == "extra":
                    value += 1
                    alive.append((now + by, value, filled(1 + by, value)))
            grown = sum(by for what, by in mine if what == "grow")
            value += 1
            alive.append((now + life + late, value, filled(size + grown, value)))
        assert [contents(tensor) for *_, tensor in alive] == [{expected} for _, expected, _ in alive]
        engine.load().boundary()


ROWS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 16)), min_size=1, max_size=8)
CHANGES = st.tuples(st.integers(0, 7), st.sampled_from(["late", "skip", "extra", "grow"]), st.integers(1, 12))


@pytest.mark.long
@given(
    ROWS,
    st.lists(st.lists(CHANGES, max_size=3), min_size=1, max_size=6),
    st.integers(1, 3),
    st.sampled_from([64, 100, 1 << 14]),
)
def test_whatever_the_program_does_no_byte_is_given_out_twice(rows, deviations, iterations, beside):
    """However much room there is beside the zone: otherwise what the plan does not know is a guest in it."""
    table = Table([(size, min(life, 2 * len(rows))) for size, life in rows], iterations)
    with memfit.session((table.zone + beside) * UNIT, "ram"):
        assert table.use()
        run_iterations(table.once, deviations)


def full(size: int, value: int) -> torch.Tensor:
    """A tensor of `size` units, made by one op with one allocation, that holds `value`."""
    return torch.full((size * UNIT // 8,), value, dtype=torch.int64)


@contextmanager
def beside_a_zone(of: int, beside: int) -> Iterator[memfit.Session]:
    """A session by a plan for one op, of which `of` units are the zone."""
    table = Table([(of, 1)], ops=("aten::full",))
    with memfit.session((of + beside) * UNIT, "ram", grow=False) as session:
        assert table.use()
        yield session


def test_a_guest_of_the_zone_leaves_when_the_plan_wants_its_bytes():
    with beside_a_zone(of=8192, beside=1100) as session:
        guests = [full(2000, value) for value in (1, 2, 3)]
        assert session.stats.plan_mismatches == 1  # the first one is where the plan has its own
        assert session.stats.unplanned_ops == 2 and session.stats.evictions == 0
        engine.load().boundary()
        planned = full(8192, 4)
        assert session.stats.planned_allocations == 1 and session.stats.evictions == 3
        assert [contents(each) for each in (*guests, planned)] == [{1}, {2}, {3}, {4}]
        assert engine.load().has_plan()


@pytest.mark.unmapped
def test_a_guest_that_is_to_stay_keeps_its_place():
    with beside_a_zone(of=8192, beside=1100) as session:
        guest = full(2000, 1)
        address = guest.data_ptr()
        engine.load().boundary()
        with pytest.raises(memfit.BudgetError):
            full(8192, 2)
        assert session.stats.planned_allocations == 0 and guest.data_ptr() == address and contents(guest) == {1}


def test_what_cannot_move_stays_where_no_slot_of_the_zone_is():
    table = Table([(3000, 2), (3000, 1)], ops=("aten::full", "aten::full"))
    with memfit.session(12000 * UNIT, "ram", grow=False) as session:
        low, fixed = full(4096, 1), torch.empty(1024 * UNIT // 4)  # nobody has written to it yet: it stays
        ((offset, size, _),) = engine.load().immovable()
        del low
        assert not table.use(0) and not table.use(offset - 2048 * UNIT)  # a slot would lie there
        assert not table.use(offset + 512 * UNIT)  # or the zone begin in its midst
        table.offsets[1] = (offset + size) // UNIT
        table.zone = table.offsets[1] + 3000
        assert table.use(0)
        kept = [full(3000, 3), full(3000, 4)]
        assert session.stats.planned_allocations == 2 and session.stats.plan_mismatches == 0
        fixed.fill_(5)
        assert engine.load().immovable() == []
        engine.load().drop_plan()
        assert [contents(each) for each in kept] == [{3}, {4}] and fixed.unique().tolist() == [5]
        assert session.stats.peak_footprint_bytes <= 12000 * UNIT
    assert [contents(each) for each in kept] == [{3}, {4}]


def test_what_outstays_its_time_leaves_before_the_op_that_has_its_place():
    """A small one stays while the op runs, and cuts up what is free."""
    table = Table(
        [(4000, 4), (2000, 2), (1, 1), (4000, 1)], ops=("aten::full", "aten::ones", "aten::full", "aten::neg")
    )
    with memfit.session((table.zone + 64) * UNIT, "ram", grow=False) as session:
        for planned in (False, True):
            assert not planned or table.use()
            large, filler, small = full(4000, 1), torch.ones(2000 * UNIT // 4), full(1, 2)
            del filler
            if not planned:
                del small
            assert contents(large.neg()) == {-1}
            del large
        stats = session.stats
    assert stats.planned_allocations == 4 and stats.plan_mismatches == 0
    assert contents(small) == {2}


def test_what_was_there_before_the_plan_leaves_before_the_op_that_has_its_place():
    """It goes where the plan would have put it; a small one stays there while the op runs."""
    table = Table([(1, 1)], ops=("aten::full",))
    with memfit.session(1 << 20, "ram") as session:
        before = full(1, 1)
        engine.load().boundary()
        assert table.use()
        made = full(1, 2)
        assert session.stats.planned_allocations == 1 and session.stats.plan_mismatches == 0
        assert [contents(before), contents(made)] == [{1}, {2}]


def test_what_comes_back_and_is_not_used_leaves_again():
    makers = {"aten::full": full, "aten::ones": torch.ones, "aten::zeros": torch.zeros, "aten::rand": torch.rand,
              "aten::randn": torch.randn, "aten::empty.memory_format": torch.empty}  # fmt: skip
    table = Table([(1000, 2), (1, 1), (1000, 1), (1000, 3), (1, 1), (1, 1), (1000, 1)], ops=tuple(makers))
    # The first leaves after its op, is back before the fourth, and has to be away again before the last.
    swaps = {"block": [0], "ordinal": [0], "bytes": [1000 * UNIT], "again": [0], "storage": [0, 0], "out_after": [0, 4],
             "free_by": [2, 5], "in_start": [3, 0], "take": [4, 0], "map_op": [], "map_storage": []}  # fmt: skip
    with memfit.session(1 << 20, "ram") as session:
        assert table.use(swap=[0, 0, 0, 1, 0, 0, 0], op_begin=[0, 1, 2, 3, 5, 6, 7], swaps=swaps)
        first = full(1000, 1)
        for units, maker in zip((1, 1000, 1, 1, 1000), [*makers.values()][1:], strict=True):
            maker(units * UNIT // 4)
        stats = session.stats
        assert stats.prefetches == 1 and stats.swaps == 2 and stats.planned_allocations == 7
        assert stats.plan_mismatches == stats.evictions == 0
        assert contents(first) == {1}


def test_the_plan_goes_on_where_the_program_is_found_again():
    makers = {"aten::zeros": torch.zeros, "aten::ones": torch.ones, "aten::empty.memory_format": torch.empty,
              "aten::rand": torch.rand, "aten::randn": torch.randn,
              "aten::full": partial(torch.full, fill_value=1.0)}  # fmt: skip
    table = Table([(16 + number, 1) for number in range(len(makers))], ops=tuple(makers))
    with memfit.session(1 << 20, "ram") as session:
        assert table.use()
        for skipped in ((), (1, 2)):
            for number, maker in enumerate(makers.values()):
                if number not in skipped:
                    maker(((16 + number) * UNIT // 4,))
            engine.load().boundary()
        stats = session.stats
    # The fourth is the first that comes, and one of which it is not known yet where it belongs.
    assert stats.missing_ops == 3 and stats.unplanned_ops == 1 and stats.derailments == 1
    assert stats.planned_allocations == 6 + 3 and stats.plan_mismatches == 0


@given(ROWS, st.integers(1, 3))
def test_a_program_that_does_as_planned_never_mismatches(rows, iterations):
    table = Table([(size, min(life, 2 * len(rows))) for size, life in rows], iterations)
    with memfit.session(1 << 20, "ram") as session:
        assert table.use()
        run_iterations(table.once, [[]] * 5)
        stats = session.stats
    assert stats.plan_mismatches == 0 and stats.planned_allocations == 5 * len(rows)


def test_what_is_late_when_an_iteration_is_cut_short_is_still_late_in_the_next():
    """Its due time was passed over with the allocations that did not come."""
    check_late([(1, 1), (1, 1), (1, 1)], [(1, "late", 2), (2, "skip", 1)])


def test_what_runs_over_the_iteration_s_end_may_be_late_too():
    check_late([(1, 1), (1, 1), (1, 2)], [(2, "late", 1)], zone=2)


def check_late(rows: list[tuple[int, int]], changes: list[tuple[int, str, int]], zone: int = 1) -> None:
    table = Table(rows)
    assert table.zone == zone  # its slots share their bytes
    with memfit.session(1 << 20, "ram"):
        assert table.use()
        run_iterations(rows, [changes, [], []])


ONE_SWAP = {"op_hashes": [7], "block": [1], "ordinal": [0], "bytes": [64], "again": [0], "storage": [0],
            "out_after": [0], "free_by": [0], "in_start": [0], "take": [1], "map_op": [0],
            "map_storage": [0]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "bad"),
    [("slots", [2]), ("slot_offset", [64]), ("slot_offset", [1]), ("due_begin", [0, 1]), ("due_begin", [0, 2, 1]),
     ("due_take", [1]), ("due_periods_ago", []), ("swap", [1]), ("swap", []), ("mapped", [1]), ("mapped", []),
     ("temporary", []), ("op_begin", [0]), ("op_begin", []), ("op_begin", [0, 2]), ("op_begin", [1, 0, 1])],
)  # fmt: skip
def test_contradictory_columns_are_refused(name, bad):
    with memfit.session(1 << 20, "ram"):
        use = engine.load().use_plan
        assert use(GOOD, 64, 1, ONE_OP, NO_REMAKES, [], True)
        with pytest.raises(ValueError, match="do not describe a plan"):
            use(GOOD | {name: bad}, 64, 1, ONE_OP, NO_REMAKES, [], True)


def test_a_zone_or_period_that_does_not_fit_the_columns_is_refused():
    with memfit.session(1 << 20, "ram"):
        for zone, iterations in ((0, 1), (64, 0), (64, 2)):
            with pytest.raises(ValueError, match="do not describe a plan"):
                engine.load().use_plan(GOOD, zone, iterations, ONE_OP, NO_REMAKES, [], True)


@pytest.mark.parametrize(
    "name", [n for n in SWAP_COLUMNS if n not in ("op_hashes", "block", "ordinal", "bytes", "again")]
)
def test_contradictory_swaps_are_refused(name):
    with memfit.session(1 << 20, "ram"):
        use = engine.load().use_plan
        assert use(GOOD | {"swap": [1]}, 64, 1, ONE_SWAP, NO_REMAKES, [], True)
        for bad in ([2 if name == "take" else 1], []):
            with pytest.raises(ValueError, match="do not describe a plan"):
                use(GOOD | {"swap": [1]}, 64, 1, ONE_SWAP | {name: bad}, NO_REMAKES, [], True)
