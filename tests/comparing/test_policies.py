import pytest

from memfit.comparing.policies import compare_policies, parse_budgets
from memfit.errors import InputError
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
