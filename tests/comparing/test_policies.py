import pytest

from memfit.baselines.paging import PAGING
from memfit.comparing.planners import choose_planners
from memfit.comparing.policies import choose_policies, compare_policies, parse_budgets
from memfit.errors import InputError, UsageError
from memfit.machine import profile
from memfit.reporting.policies import to_text
from memfit.simulate import load_bytes
from trace_builder import TraceBuilder


def test_budgets_are_read_with_one_unit_for_all():
    assert parse_budgets("80,60,40%", 1000) == (800, 600, 400)
    assert parse_budgets("1KiB,50%", 1000) == (1024, 500)
    assert parse_budgets("512,1kb", 1000) == (512, 1000)
    with pytest.raises(InputError):
        parse_budgets("80,x%", 1000)


def test_a_comparison_has_a_cell_for_each_policy_and_budget():
    builder = TraceBuilder()
    builder.op("aten::mm", reads=[builder.before(10)])
    trace = builder.build()
    peak = int(load_bytes(trace).max())
    comparison = compare_policies("f", trace, profile("pcie4"), (peak, 1), ("none", "memfit"))
    assert [(c.policy, c.budget_bytes, c.overhead is None) for c in comparison.cells] == [
        ("none", 10, False),
        ("memfit", 10, False),
        ("none", 1, True),
        ("memfit", 1, True),
    ]
    assert to_text(comparison).row_count == 2


def test_all_are_the_planners_and_those_that_page():
    assert set(choose_policies("all")) == {*choose_planners("all"), *PAGING}
    assert choose_policies("deepum,dtr,swap") == ("deepum", "dtr", "swap")
    with pytest.raises(UsageError):
        choose_policies("um")


def test_below_the_floor_those_that_page_alone_have_a_figure():
    builder = TraceBuilder(alignment=512)
    x, y = builder.before(16 << 20), builder.before(16 << 20)
    builder.op("aten::add", reads=[x, y], duration_us=100.0)
    trace = builder.build()
    cells = compare_policies("f", trace, profile("pcie4"), (8 << 20,), ("memfit", "um-naive", "deepum")).cells
    assert cells[0].overhead is None and cells[0].required_bytes == 32 << 20
    for cell in cells[1:]:
        assert cell.overhead > 1 and cell.peak_bytes <= 8 << 20
        assert cell.copied_bytes == 64 << 20  # all comes in and leaves, in each iteration
        assert cell.required_bytes is None
