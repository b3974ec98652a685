from memfit.machine import Link, Machine
from memfit.planning.joint.program import time_bound
from memfit.planning.joint.rounding import Rounding
from memfit.planning.joint.transformed import with_recomputes
from memfit.planning.joint.values import Values
from memfit.simulate import load_bytes
from planning.joint.test_transformed import layers

SLOW = Link.affine(0.0, 1_000_000.0)  # a millisecond a byte: nobody swaps
MACHINE = Machine("slow", SLOW, SLOW)


def rounding(budget_bytes, count=4):
    trace, _ = layers(count)
    values = Values.of(trace)
    return values, Rounding(values, MACHINE, time_bound(trace, MACHINE, budget_bytes))


def test_remakings_are_chosen_until_the_budget_is_kept():
    values, found = rounding(310)
    choice = found.rounded(0.5)
    made = with_recomputes(values, choice.arranged(values))
    assert choice.remade and load_bytes(values.trace).max() > 310
    swapped = sum(gap.size_bytes for gap in choice.swapped)
    assert load_bytes(made.trace).max() - swapped <= 310


def test_what_fits_beside_the_rest_is_left_out():
    _, found = rounding(int(load_bytes(layers(4)[0]).max()) - 8)
    everything = {gap for gap, us in found.us.items() if us is not None}
    assert len(found.settled(everything, ()).remade) < len(everything)


def test_what_was_made_early_passes_where_it_has_no_room():
    values, found = rounding(260)
    everything = {gap for gap, us in found.us.items() if us is not None}
    choice = found.settled(everything, ())
    assert choice.passing <= choice.remade
    assert with_recomputes(values, choice.arranged(values)).trace.ops
