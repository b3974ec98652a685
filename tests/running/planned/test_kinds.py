"""Which kind of iteration comes next, and which recorded iterations a plan is made for."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memfit.running import engine
from memfit.running.planned import recorded_kinds
from memfit.running.planned.kinds import Kinds
from memfit.running.planned.recorded_kinds import RecordedKinds
from running.plainly import descend
from running.planned.networks import WORKS
from running.planned.training import inside, trained_inside

A, B, C = 11, 22, 33


def after(*history: int) -> Kinds:
    kinds = Kinds()
    for kind in history:
        kinds.note(kind)
    return kinds


@pytest.mark.parametrize(
    ("history", "expected"),
    [((), 0), ((A,), A), ((A, A), A), ((A, B), B), ((A, B, A), B), ((B, A, A), A), ((A, A, B, A, A, B, A, A), B),
     ((A, A, B, A, A, B, A), A), ((A, B, C, A, B, C, A, B), C), ((A, A, A, B), A),
     ((A, B, B, A, B, C), B), ((A, B, B, A, C), A), ((A, A, A, B, A), A),
     ((A, B, A, C, A), C), ((A, B, A, B, A, C, A), B)],
)  # fmt: skip
def test_what_comes_next_is_what_came_after_the_longest_run_alike(history, expected):
    assert after(*history).expected() == expected


@pytest.mark.parametrize("length", [2, 5, 10, 40])
def test_an_epoch_that_ends_with_another_batch_is_foreseen_from_the_third_on(length):
    epoch = [A] * (length - 1) + [B]
    kinds = after(*epoch, *epoch)
    for kind in epoch * 8:
        assert kinds.expected() == kind
        kinds.note(kind)


@given(st.lists(st.sampled_from([A, B, C]), min_size=1, max_size=6), st.integers(0, 100))
def test_whatever_repeats_is_foreseen(cycle, seed):
    """However it began, once it has gone on for twice as long."""
    noise = random.Random(seed).choices([A, B, C], k=10)
    kinds = after(*noise, *cycle * (2 + 20 // len(cycle)))
    for kind in cycle * 2:
        assert kinds.expected() == kind
        kinds.note(kind)


def test_a_kind_recurs_only_if_it_has_come_twice_lately():
    assert not after(A, B).recurs(A) and after(A, B, A).recurs(A) and not after(A, B).recurs(C)
    assert not after(A, *range(100, 200), A).recurs(A)
    assert after(A, A, B).repeats(A) and not after(A, B, A, B).repeats(A)


def recorded(wanted: int, repeats: bool, *kinds: int, in_the_midst: bool = False) -> tuple[RecordedKinds, int]:
    """Note iterations until there are enough; return how many that took."""
    recording = RecordedKinds(wanted, repeats)
    for count in range(1, len(kinds) + 1):
        ends = [10 * end for end in range(in_the_midst, count + 1)]
        recording.note([999, *kinds[:count]], ends, [7 * end for end in ends])
        if recording.is_enough:
            return recording, count
    raise AssertionError("there are never enough")


@pytest.mark.parametrize(
    ("repeats", "in_the_midst", "kinds", "count", "begin"),
    [(True, False, (A, A), 2, 0), (True, True, (A, A, A), 3, 10), (True, False, (A, B, A, A), 4, 20),
     (False, False, (A, B), 2, 0), (False, True, (A, B, A, B), 4, 20), (False, False, (B, A, A), 3, 10),
     (True, False, (A, B, B, B, B, B, B, B), 8, 0)],
)  # fmt: skip
def test_two_alike_are_recorded_if_they_ever_come_in_a_row(monkeypatch, repeats, in_the_midst, kinds, count, begin):
    monkeypatch.setattr(recorded_kinds.CompressedIterations, "of", lambda *about: about)
    recording, took = recorded(A, repeats, *kinds, in_the_midst=in_the_midst)
    assert took == count
    raw = object()
    assert recording.found(known=()) == A
    assert recording.iterations(A, raw, 64) == (
        raw, [begin, begin + 10, begin + 20], [7 * begin, 7 * begin + 70, 7 * begin + 140], f"{A:016x}", 64,
    )  # fmt: skip


def test_what_does_not_come_while_it_is_waited_for_gives_its_place_to_what_comes_instead():
    recording, took = recorded(A, False, C, *[B] * 20)
    assert took == 8
    assert recording.found(known=()) == B
    assert recording.found(known={B}) == 0


def test_nothing_is_found_where_no_two_in_a_row_are_alike():
    recording, _ = recorded(A, False, *[B, C] * 10)
    assert recording.found(known=()) == 0


def test_of_several_that_came_in_a_row_the_one_is_found_that_came_most_often(monkeypatch):
    monkeypatch.setattr(recorded_kinds.CompressedIterations, "of", lambda *about: about)
    recording, _ = recorded(A, True, C, C, B, B, B, C, B, B)
    assert recording.found(known=()) == B
    assert recording.iterations(B, None, 64)[1] == [20, 30, 40]


@pytest.mark.usefixtures("steady", "on_its_own")
def test_the_fourth_step_runs_by_a_plan():
    """The first shows the optimizer and makes its state, and the next two are alike."""
    _, stats = trained_inside(WORKS["embedding"], "joint", "60%", 4)
    assert stats[2].planned_allocations == 0
    planned = stats[3].planned_allocations / (stats[3].allocations - stats[2].allocations)
    assert planned > 0.9 and stats[3].plan_mismatches == 0


@pytest.mark.usefixtures("steady", "on_its_own")
def test_what_never_comes_again_is_not_recorded_for_ever_and_what_does_later_is_planned():
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    sizes = iter([*range(100, 1400, 100), *[700] * 11])
    recorded, planned = [], []
    with inside("swap", 1_600_000) as session:
        for _ in descend(optimizer, lambda: net(torch.ones(next(sizes), 64)).sum(), 24):
            recorded.append(engine.load().recorded_ticks())
            planned.append(session.stats.planned_allocations)
    assert 0 < recorded[0] < recorded[5] and recorded[10] == recorded[12] == 0
    assert planned[15] == 0 < planned[-1]
