import math
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memfit.planning.partition import Speeds, Value, cheapest

COSTS = st.one_of(st.integers(0, 6).map(float), st.just(math.inf))


@st.composite
def graphs(draw: st.DrawFn) -> list[Value]:
    values: list[Value] = []
    for index in range(draw(st.integers(1, 6))):
        inputs = draw(st.sets(st.integers(0, index - 1), max_size=2)) if index else set()
        kept, again = draw(COSTS), draw(COSTS)
        values.append(Value(tuple(inputs), kept, again, draw(st.booleans()), draw(st.booleans())))
    return values


def made_from(values: list[Value], value: Value) -> set[int]:
    """Return the values that take room from which one is made, by nothing else that does."""
    near = set(value.inputs)
    while joined := {each for each in near if values[each].is_joined}:
        near = (near - joined) | {other for each in joined for other in values[each].inputs}
    return near


def cost(values: list[Value], ways: tuple[str, ...]) -> float:
    """Return what a choice costs; infinity if what is wanted, or an input of what is made again, is not there."""
    total = 0.0
    for value, way in zip(values, ways, strict=True):
        if way == "absent":
            total += math.inf if value.is_wanted else 0.0
        else:
            total += value.kept_us if way == "kept" else value.again_us
            if way == "again" and any(ways[each] == "absent" for each in value.inputs):
                return math.inf
            if (
                way == "again"
                and not value.is_joined
                and any(ways[each] == "again" for each in made_from(values, value))
            ):
                return math.inf
    return total


@example([Value((), 3.0, math.inf, False), Value((0,), 2.0, 1.0, True), Value((0,), 2.0, 0.0, True)])
@given(graphs())
def test_no_other_choice_costs_less(values):
    choices = list(product(("absent", "kept", "again"), repeat=len(values)))
    if all(cost(values, ways) == math.inf for ways in choices):
        with pytest.raises(ValueError, match="neither kept nor made again"):
            cheapest(values)
        return
    again = cheapest(values)
    own = [ways for ways in choices if all((way == "again") == (i in again) for i, way in enumerate(ways))]
    best = min(cost(values, ways) for ways in choices)
    assert min(cost(values, ways) for ways in own) == best


def test_what_several_are_made_from_is_paid_for_once():
    source = Value((), 5.0, math.inf, False)
    assert cheapest([source, Value((0,), 3.0, 0.0, True)]) == set()
    assert cheapest([source, Value((0,), 3.0, 0.0, True), Value((0,), 3.0, 0.0, True)]) == {1, 2}


def test_of_a_chain_every_other_value_is_made_again():
    chain = [Value((), 0.0, math.inf, False)]
    for _ in range(3):
        chain.append(Value((len(chain) - 1,), 9.0, 1.0, True))
        chain.append(Value((len(chain) - 1,), 9.0, 0.5, True, is_joined=True))
    assert cheapest(chain) == {1, 2, 4, 5, 6}


def test_what_can_be_had_in_no_way_is_an_error():
    with pytest.raises(ValueError, match="neither kept nor made again"):
        cheapest([Value((), math.inf, math.inf, True)])


def test_speeds_that_differ_a_little_decide_alike():
    speeds = Speeds(1.1e11, 0.9e10, 2.0e9)
    assert speeds.rounded() == Speeds(1.2e11, 1.0e10, 1.9e9).rounded()
    assert speeds.rounded() != Speeds(4e11, 0.9e10, 2.0e9).rounded()
    assert all(1 / math.sqrt(2) <= a / b <= math.sqrt(2) for a, b in zip(
        speeds.as_tuple(), speeds.rounded().as_tuple(), strict=True))  # fmt: skip
