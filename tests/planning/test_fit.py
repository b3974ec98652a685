from memfit.planning.fit import Fitted, Infeasible, fit_within


def asked(answers, budget=100, rounds=5):
    """What is returned, and the limits that were asked for, when attempts are answered like this."""
    limits, left = [], iter(answers)

    def attempt(limit):
        limits.append(limit)
        return next(left)

    return fit_within(budget, attempt, rounds=rounds), limits


def test_what_fits_at_once_is_taken():
    assert asked([Fitted(100, "first")]) == ("first", [100])


def test_what_needs_too_much_is_asked_again_with_as_much_less():
    assert asked([Fitted(110, "a"), Fitted(104, "b"), Fitted(99, "c")]) == ("c", [100, 90, 86])


def test_a_limit_lowered_too_far_goes_back_to_the_least_that_can_be_met():
    assert asked([Fitted(140, "a"), Infeasible(80), Fitted(95, "b")]) == ("b", [100, 60, 80])


def test_nothing_is_returned_where_no_choice_meets_the_budget():
    assert asked([Infeasible(101)]) == (None, [100])
    assert asked([Fitted(140, "a"), Infeasible(80), Infeasible(80)]) == (None, [100, 60, 80])


def test_an_attempt_may_give_up_and_rounds_end():
    assert asked([None]) == (None, [100])
    assert asked([Fitted(101, "a")] * 3, rounds=2) == (None, [100, 99])


def test_a_limit_that_changes_nothing_is_lowered_by_more_and_more():
    answers = [Fitted(102, "a"), Fitted(102, "b"), Fitted(102, "c"), Fitted(103, "d"), Fitted(100, "e")]
    assert asked(answers) == ("e", [100, 98, 90, 58, 55])
