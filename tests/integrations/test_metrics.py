"""The figures that every library logs, and which session they are of."""

from __future__ import annotations

import pytest
import torch

import memfit
from integrations.networks import BUDGET, WIDTH, batches, network
from memfit.integrations.metrics import CHANGES, IN_A_BAR, LEVELS, Meter, meter_of
from running.children import child_says

MIB = 1 << 20


def train(steps: int) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches(steps).split(32):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def test_changes_add_up_to_the_session_s_totals_and_levels_are_its_own():
    with memfit.session(BUDGET, "ram") as session:
        meter = Meter(session)
        read = []
        for _ in range(3):
            train(3)
            read.append(meter.read())
        stats = session.stats
    assert set(read[0]) == {*LEVELS, *CHANGES} >= set(IN_A_BAR)
    assert sum(figures["memfit/out_mib"] for figures in read) == pytest.approx(stats.bytes_out / MIB) != 0
    assert sum(figures["memfit/in_mib"] for figures in read) == pytest.approx(stats.bytes_in / MIB) != 0
    assert read[-1]["memfit/budget_mib"] == BUDGET / MIB
    assert read[-1]["memfit/arena_peak_mib"] == stats.peak_footprint_bytes / MIB
    assert all(0 < figures["memfit/wait_share"] < 1 for figures in read)
    assert all(isinstance(value, float) for value in read[0].values())


def test_nothing_has_changed_when_figures_are_read_again():
    with memfit.session(BUDGET, "ram") as session:
        meter = Meter(session)
        train(2)
        meter.read()
        again = meter.read()
    assert [again[name] for name in CHANGES] == [0.0] * len(CHANGES)


def test_the_active_session_is_found_whoever_has_begun_it_and_only_while_it_runs():
    assert memfit.active_session() is None
    session = memfit.session(BUDGET, "ram")
    with session:
        assert memfit.active_session() is session
        assert meter_of(None, "it") is not None and meter_of(session, "it") is not None
        assert child_says(lambda: memfit.active_session() is None)
    assert memfit.active_session() is None


def test_without_a_session_there_is_one_warning_that_says_what_to_do():
    with pytest.warns(UserWarning, match="It has nothing to report: no memfit session is active(.|\n)*memfit.session"):
        assert meter_of(None, "It") is None


@pytest.mark.parametrize("state", ["not begun", "ended"])
def test_a_session_that_is_passed_has_to_be_the_active_one(state):
    session = memfit.session(BUDGET, "ram")
    if state == "ended":
        with session:
            torch.ones(WIDTH)
    with pytest.raises(memfit.MemfitError, match="passed to It is not active"):
        meter_of(session, "It")
