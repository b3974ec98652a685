from dataclasses import replace

import pytest

from memfit.comparing.whatif import case_of, filled, parse_varied
from memfit.errors import UsageError
from memfit.machine import Link, Machine
from memfit.planning.autoswap import smallest_budget
from memfit.reporting.show import print_text
from memfit.reporting.whatif import WhatIf, to_text
from memfit.simulate import load_bytes
from memfit.units import parse_budget
from planning.joint.test_transformed import layers

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 1000))
TRACE = layers(4)[0]
PEAK = int(load_bytes(TRACE).max())


def test_every_combination_is_tried_the_last_name_fastest():
    assert parse_varied(["batch=8,16", "dtype=bf16"]) == [
        {"batch": "8", "dtype": "bf16"},
        {"batch": "16", "dtype": "bf16"},
    ]
    assert [list(each.values()) for each in parse_varied(["a=1,2", "b=3,4"])] == [
        ["1", "3"], ["1", "4"], ["2", "3"], ["2", "4"],
    ]  # fmt: skip
    assert parse_varied(["a= 1 ,1,,2"]) == [{"a": "1"}, {"a": "2"}]


def test_without_values_there_is_one_case():
    assert parse_varied([]) == [{}]


@pytest.mark.parametrize("texts", [["batch"], ["batch="], ["=8"], ["a b=8"], ["a=1", "a=2"]])
def test_a_malformed_variation_is_refused(texts):
    with pytest.raises(UsageError, match="cannot be read"):
        parse_varied(texts)


def test_placeholders_are_filled_and_other_names_are_for_the_environment():
    values = {"batch": "8", "LENGTH": "64"}
    arguments, environment = filled(["--batch={batch}", "{batch}x{batch}", "{other}"], values)
    assert arguments == ["--batch=8", "8x8", "{other}"] and environment == {"LENGTH": "64"}


def case(budget):
    return case_of(TRACE, {"n": "1"}, LINK, None if budget is None else parse_budget(budget), effort=0.05)


def test_a_case_without_a_budget_has_its_peak_and_its_smallest_budget():
    found = case(None)
    assert (found.peak_bytes, found.floor_bytes) == (PEAK, smallest_budget(TRACE)[0])
    assert (found.fits, found.added, found.bound, found.budget_bytes) == ("", None, None, None)
    assert found.ops == len(TRACE.ops) and found.compute_us == sum(op.duration_us for op in TRACE.ops)


def test_what_fits_as_it_is_needs_no_plan():
    assert (case("100%").fits, case("100%").added, case("100%").bound) == ("as it is", 0.0, 0.0)


def test_what_fits_with_a_plan_has_its_time_and_its_bound():
    found = case("75%")
    assert found.fits == "with a plan" and found.budget_bytes == PEAK * 3 // 4
    assert 0 < found.bound <= found.added


LARGE = replace(TRACE, storages=tuple(replace(s, size_bytes=s.size_bytes << 20) for s in TRACE.storages))


@pytest.mark.parametrize(("trace", "fits"), [(LARGE, "slices or maps"), (TRACE, "no")])
def test_below_what_plans_meet_it_says_whether_ops_may_run_in_slices_or_on_mapped_storages(trace, fits, capsys):
    budget = smallest_budget(trace)[0] - trace.alignment
    found = case_of(trace, {"n": "1"}, LINK, parse_budget(str(budget)), effort=0.05)
    assert (found.fits, found.added, found.bound) == (fits, None, None)
    print_text(to_text(WhatIf("train.py", "m", (found,))))
    assert ("memfit run may still train" in " ".join(capsys.readouterr().out.split())) is (fits != "no")


def test_the_text_has_a_row_a_case(capsys):
    print_text(to_text(WhatIf("train.py", "m", (case("100%"), case("75%")))))
    text = capsys.readouterr().out
    assert "train.py on m" in text and "as it is" in text and "with a plan" in text
