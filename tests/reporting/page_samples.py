"""Reports to look at: of a small iteration with a plan, whose lines are hostile."""

from __future__ import annotations

from memfit.comparing.page import Asked, page_of
from memfit.events import lifetimes_of_trace
from memfit.ir import Category, Phase, Trace
from memfit.machine import profile
from memfit.reporting.page import Page, RunFigures
from trace_builder import TraceBuilder

MIB = 1 << 20
HOSTILE = "</script><img src=x onerror=alert(1)>.py:7"


def iteration(layers: int = 6) -> Trace:
    """Return an iteration of some layers, forward and backward, in 512-byte steps."""
    builder = TraceBuilder(alignment=512)
    weights = [builder.before(2 * MIB, Category.PARAMETER, "model.py:3") for _ in range(layers)]
    made = [builder.alloc(4 * MIB, Category.INPUT, "load.py:1")]
    for weight in weights:
        out = builder.alloc(4 * MIB, Category.ACTIVATION, HOSTILE)
        builder.op("aten::mm", reads=(made[-1], weight), writes=(out,), duration_us=900.0, source=HOSTILE)
        made.append(out)
    for weight in reversed(weights):
        gradient = builder.alloc(2 * MIB, Category.GRADIENT, "train.py:9")
        builder.op("aten::mm", phase=Phase.BACKWARD, reads=(made[-1], weight), writes=(gradient,), duration_us=1800.0)
        builder.free(made.pop())
        builder.free(gradient)
    builder.free(made.pop())
    return builder.build()


def page(*, points: int = 3) -> Page:
    """Return its report, with a plan for 70 % of its peak."""
    trace = iteration()
    asked = Asked(
        points, 0.1, ("before.json", lifetimes_of_trace(iteration(4))), RunFigures(28 * MIB, [("moved", HOSTILE)])
    )
    return page_of(trace, profile("pcie4"), file="trace.json", budget_bytes=28 * MIB, asked=asked)
