from memfit.comparing.plans import report_plan
from memfit.ir import Swap
from memfit.machine import Link, Machine
from memfit.reporting.plans import to_text
from memfit.simulate import simulate
from swap_builder import plan_of
from trace_builder import TraceBuilder

LINK = Machine("m", Link.affine(0, 1000), Link.affine(0, 3000))


def five_ops():
    builder = TraceBuilder()
    weight = builder.before(10)
    for used in ([weight], [], [], [], [weight]):
        builder.op("aten::mm", reads=used, duration_us=10.0)
    return builder.build()


PLAN = plan_of(five_ops(), Swap(0, 10, 0, 2, 3, 4, False))


def test_a_report_names_what_waits():
    trace = five_ops()
    figures = report_plan(trace, PLAN, simulate(trace, LINK, PLAN))
    assert (figures.swaps, figures.bytes_out, figures.bytes_in) == (1, 10, 10)
    assert [(s.op, s.direction, s.duration_us) for s in figures.largest_stalls] == [(4, "in", 20.0)]
    assert "op 4 aten::mm waits 20.0 us for storage 0 (10 B) to come in" in to_text(figures)
    assert "+40.00 % on" in to_text(figures)
