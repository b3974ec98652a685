"""Pauses in the search for plans: told once, longer each time, and never for good."""

from __future__ import annotations

from memfit.running.planned.pauses import Pauses


def lengths(pauses: Pauses, times: int, *, at_once: bool = False) -> list[int]:
    found = []
    for _ in range(times):
        pauses.begin(7, "why", 100, at_once=at_once)
        found.append(next(n for n in range(10_000) if not pauses.lasts(7, 100 + n)))
    return found


def test_each_pause_is_twice_as_long_and_none_is_for_good(capsys):
    assert lengths(Pauses(), 9) == [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert capsys.readouterr().err == (
        "memfit: note: iterations run without a plan (why); memfit tries again after 16 more\n"
    )


def test_a_first_one_at_once_is_not_told(capsys):
    pauses = Pauses()
    assert lengths(pauses, 1, at_once=True) == [0] and pauses.reasons == () and not capsys.readouterr().err
    assert lengths(pauses, 2, at_once=True) == [16, 32] and pauses.reasons == ("why",)
    assert capsys.readouterr().err.count("\n") == 1


def test_one_that_nobody_feels_is_told_only_when_somebody_does(capsys):
    pauses = Pauses()
    pauses.begin(1, "why", 0, is_felt=False)
    assert pauses.lasts(1, 15) and pauses.reasons == () and not capsys.readouterr().err
    pauses.begin(1, "why", 16)
    pauses.begin(1, "why", 48)
    assert pauses.reasons == ("why",) and capsys.readouterr().err.count("after 32 more\n") == 1


def test_other_kinds_of_iterations_go_on_and_a_plan_ends_the_pause():
    pauses = Pauses()
    pauses.begin(1, "one", 0)
    pauses.begin(2, "two", 0)
    assert not pauses.lasts(3, 0) and pauses.reasons == ("one", "two")
    pauses.end(1)
    pauses.end(3)
    assert pauses.reasons == ("two",)
    pauses.begin(1, "again", 50)
    assert pauses.reasons == ("again", "two") and pauses.lasts(1, 81) and not pauses.lasts(1, 82)
