import pickle

import pytest

from memfit.errors import (
    AccessError,
    BudgetError,
    EngineError,
    InputError,
    InternalError,
    MemfitError,
    TierError,
    UsageError,
    VerificationError,
)


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (InputError, 1),
        (UsageError, 2),
        (BudgetError, 3),
        (VerificationError, 4),
        (AccessError, 6),
        (InternalError, 7),
        (TierError, 1),
        (EngineError, 1),
    ],
)
def test_each_kind_has_its_exit_code_and_takes_one_finished_string(kind, exit_code):
    error = kind("all in one string, as native code raises it")
    assert isinstance(error, MemfitError)
    assert error.exit_code == exit_code
    assert str(error) == "all in one string, as native code raises it"


def test_message_says_what_why_and_what_to_do_in_this_order():
    error = InputError("the file is short", why="it ends at byte 9", remedy="record it again")
    what, why, remedy = str(error).splitlines()
    assert what == "the file is short"
    assert "why" in why and "it ends at byte 9" in why
    assert "try" in remedy and "record it again" in remedy


def test_message_leaves_out_what_is_unknown():
    assert str(InputError("bad", remedy="mend it")).splitlines() == ["bad", "  try: mend it"]


@pytest.mark.parametrize("kind", [BudgetError, TierError])
def test_code_that_catches_runtime_errors_catches_what_the_arena_raises(kind):
    with pytest.raises(RuntimeError):
        raise kind("out of budget")


def test_budget_error_carries_what_sets_the_smallest_budget():
    error = BudgetError("no", required_bytes=7, op="aten::mm", source="a.py:3", tensors=["weight 4 B"])
    assert (error.required_bytes, error.op, error.source) == (7, "aten::mm", "a.py:3")
    assert error.tensors == ("weight 4 B",)
    plain = BudgetError("no")
    assert (plain.required_bytes, plain.op, plain.source, plain.tensors) == (None, "", "", ())


def test_errors_cross_processes_whole():
    error = pickle.loads(pickle.dumps(BudgetError("no", why="small", remedy="grow", required_bytes=7)))
    assert str(error) == "no\n  why: small\n  try: grow"
    assert (error.why, error.required_bytes) == ("small", 7)
