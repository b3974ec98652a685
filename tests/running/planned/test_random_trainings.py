"""Trainings drawn at random, within random budgets, by plans that make storages again: the same bits.

Each training is known by its seed. `MEMFIT_PROGRAMS` says how many runs there are in the slow suite, and
`MEMFIT_FIRST_PROGRAM` the first seed. `reduced` makes one that differs small.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from memfit import Stats
from running.programs.bodies import BODIES
from running.programs.reduce import reduced
from running.programs.surroundings import CALLS, CONTEXTS
from running.programs.training import CHEAP, Part, Training, drawn
from running.programs.within import Way, check, plan_soon, seen_of, ways

pytestmark = [
    pytest.mark.timeout(14400),
    pytest.mark.usefixtures("on_its_own"),
    pytest.mark.unstressed("what plans drop"),
    pytest.mark.filterwarnings("ignore"),
]
MADE_AGAIN = 0.5  # of the runs have storages made again
INVALID = 0.1  # of the trainings are such as torch refuses, at most
# A crash of the interpreter leaves the training that caused it behind.
CURRENT = Path(tempfile.gettempdir()) / f"memfit-training-{os.getpid()}.txt"


def runs(seeds: Iterable[int], monkeypatch: pytest.MonkeyPatch, found: Counter[str]) -> Iterator[Stats]:
    """Run the trainings of these seeds, each in its ways, and yield their figures."""
    for seed in seeds:
        training = drawn(seed)
        try:
            plain = seen_of(training)
        except RuntimeError:  # two things that do not go together: torch says so
            found["invalid"] += 1
            continue
        for way in ways(seed):
            CURRENT.write_text(f"{way}, {training}\n")
            yield check(training, way, plain, monkeypatch)
    CURRENT.unlink(missing_ok=True)


def counted(stats: Iterable[Stats], found: Counter[str]) -> Counter[str]:
    """Return how many runs had what."""
    for one in stats:
        found["runs"] += 1
        found["with a plan"] += one.plans > 0
        found["with storages made again"] += one.recomputations > 0
        found["re-runs"] += one.recomputations
        found["with swaps"] += one.swaps > 0
        found["handovers"] += one.handovers
        found["derailments"] += one.derailments
    return found


@pytest.mark.long
def test_some_random_trainings_are_the_same_by_plans_that_make_storages_again(monkeypatch):
    plan_soon(monkeypatch)
    found = Counter[str]()
    counted(runs(range(100, 105), monkeypatch, found), found)
    assert found["with storages made again"] >= MADE_AGAIN * found["runs"] > 0, found
    assert found["handovers"] > 0


FOUND = {
    50028: "a trial of what is dropped for good, whose sources were gone, was counted as a re-run that had failed",
    60044: "a dispatch mode counted the ops of memfit's own with which np.array was answered",
    61055: "the copy for a trial made its original leave, whose address was read then: a segmentation fault",
    65247: "a Python number that had been moved out was read by torch, which shows it to a mode as what it is",
}


@pytest.mark.long
@pytest.mark.parametrize("seed", FOUND)
def test_what_random_trainings_have_found_stays_mended(seed, monkeypatch):
    plan_soon(monkeypatch)
    found = Counter[str]()
    assert counted(runs([seed], monkeypatch, found), found)["runs"] == 2


@pytest.mark.slow
def test_many_random_trainings_are_the_same_by_plans_that_make_storages_again(monkeypatch, capsys):
    plan_soon(monkeypatch)
    first, most = (
        int(os.environ.get(f"MEMFIT_{name}", default)) for name, default in (("FIRST_PROGRAM", 0), ("PROGRAMS", 2000))
    )
    found = Counter[str]()
    counted(itertools.islice(runs(itertools.count(first), monkeypatch, found), most), found)
    with capsys.disabled():
        print("\n" + ", ".join(f"{number} {name}" for name, number in found.items()))
    assert found["with storages made again"] >= MADE_AGAIN * most
    assert found["invalid"] <= INVALID * most and found["derailments"] > 0 < found["handovers"]


def each_kind() -> Iterator[Training]:
    """Yield trainings in which each body, call and context is met beside what plans like to drop."""
    before, after = (tuple(map(Part, names)) for names in (CHEAP[:3], CHEAP[3:6]))
    for number, body in enumerate(BODIES):
        yield Training((*before, Part(body), *after), number)
    for number, call in enumerate(CALLS):
        yield Training((*before, Part("gelu", call), Part("dropout", call), *after), number)
    for number, context in enumerate(CONTEXTS):
        parts = (Part(body, "", context) for body in ("gelu", "integers", "tiny", "out"))
        yield Training((*before, *parts, *after), number)
        yield Training((*before, *after), number, forward_context=context)


@pytest.mark.slow
def test_each_kind_of_layer_call_and_context_is_the_same_where_storages_are_made_again(monkeypatch):
    plan_soon(monkeypatch)
    trainings, found = list(each_kind()), Counter[str]()
    way = Way("recompute", 0.75, 1e6)
    counted((check(training, way, seen_of(training), monkeypatch) for training in trainings), found)
    assert found["with storages made again"] >= MADE_AGAIN * len(trainings), found


def test_a_training_is_taken_apart_as_long_as_it_does_what_it_is_reduced_for():
    whole = drawn(3)
    wanted = whole.parts[2].body
    small = reduced(whole, lambda training: any(part.body == wanted for part in training.parts))
    assert small.parts == (Part(wanted),)
    assert small == Training(small.parts, seed=3, steps=whole.steps)


def test_a_training_is_known_by_its_seed_and_by_how_it_is_shown():
    names = {name: globals()[name] for name in ("Training", "Part")}
    assert all(eval(repr(drawn(seed)), names) == drawn(seed) for seed in range(50))
