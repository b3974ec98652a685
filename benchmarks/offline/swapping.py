"""Swap plans on synthetic networks: every policy's added time, and how long simulating and planning take.

Nobody has to run these networks: their ops take what their bytes and multiplications take on a GPU of given rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated, Any, NamedTuple

from benchmarks.common.result import Result, Row, Table
from benchmarks.common.timing import in_turn, timed
from benchmarks.offline import _policies
from memfit.baselines.policies import POLICIES
from memfit.ir import Category, Phase, Trace
from memfit.machine import profile
from memfit.planning.autoswap import Thresholds, candidates, plan_under_budget
from memfit.simulate import Simulator, load_bytes
from tests.trace_builder import TraceBuilder

SHARES = (90, 75, 60, 45)
MACHINE = profile("pcie4")
_KEPT = ("policy", "budget_bytes", "overhead", "seconds")  # of a cell
FLOPS_PER_US = 50e6  # 50 TFLOP/s
BYTES_PER_US = 1.5e6  # 1.5 TB/s
LAUNCH_US = 3.0


class Layer(NamedTuple):
    """A product with a weight, or without one an element-wise op; sizes in bytes.

    The backward of a product makes two gradients and needs the input; that of an element-wise op needs the output.
    """

    name: str
    out: int
    weight: int = 0
    flops: float = 0.0


def trained(input_bytes: int, layers: Iterable[Layer]) -> Trace:
    """Return one iteration of training the layers, one after the other, with Adam."""
    builder = TraceBuilder(alignment=512)
    x, tape = builder.alloc(input_bytes), []
    for layer in layers:
        kinds = (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.OPTIMIZER_STATE) if layer.weight else ()
        weights = [builder.before(layer.weight, kind) for kind in kinds]
        y = _op(builder, layer.name, [x, *weights[:1]], layer.out, Phase.FORWARD, layer.flops)
        tape.append((layer, x, y, weights))
        x = y
    gradients = _backward(builder, tape)
    for layer, _, _, weights in (step for step in tape if step[0].weight):
        reads, us = [gradients.pop()], LAUNCH_US + 6 * layer.weight / BYTES_PER_US
        builder.op("adam", reads=reads, writes=weights, duration_us=us, phase=Phase.OPTIMIZER)
        builder.free(*reads)
    return builder.build()


def _backward(builder: TraceBuilder, tape: Sequence[tuple[Layer, int, int, list[int]]]) -> list[int]:
    """Add the loss and the backward of the layers; return the weights' gradients, that of the last layer first."""
    size = {s: builder.rows[s].size_bytes for _, x, y, _ in tape for s in (x, y)}
    last, gradients = tape[-1][2], []
    grad = _op(builder, "loss", [last], size[last], Phase.BACKWARD)
    for layer, x, y, weights in reversed(tape):
        name, flops, after = layer.name, layer.flops, grad
        if weights:
            gradients.append(_op(builder, f"{name}_weight_grad", [after, x], layer.weight, Phase.BACKWARD, flops))
            grad = _op(builder, f"{name}_grad", [after, weights[0]], size[x], Phase.BACKWARD, flops)
        else:
            grad = _op(builder, f"{name}_backward", [after, y], size[x], Phase.BACKWARD)
        builder.free(after, y)
    builder.free(grad)
    return gradients


def _op(builder: TraceBuilder, name: str, reads: list[int], out: int, phase: Phase, flops: float = 0.0) -> int:
    """Add an op that is bound by its bytes or its multiplications."""
    moved = sum(builder.rows[s].size_bytes for s in reads) + out
    us = LAUNCH_US + max(moved / BYTES_PER_US, flops / FLOPS_PER_US)
    return builder.op(name, reads=reads, outputs=[out], duration_us=us, phase=phase)[0]


def decoder(layers: int = 24, width: int = 1024, tokens: int = 8192) -> Trace:
    """Return a decoder of two-byte numbers: six products and their element-wise ops a layer."""
    out = 2 * tokens * width
    block: list[Layer] = []
    for weights in (width * width * share for share in (1, 1, 1, 1, 4, 1)):
        block += [Layer("norm", out), Layer("mm", out, 2 * weights, 2.0 * tokens * weights), Layer("gelu", out)]
    return trained(out, layers * block)


def convolutions(stages: int = 4, blocks: int = 6, batch: int = 64, side: int = 56, channels: int = 64) -> Trace:
    """Return a convolutional net of four-byte numbers: each stage halves the sides and doubles the channels."""
    layers: list[Layer] = []
    inputs = 3
    for stage in range(stages):
        wide, places = channels << stage, batch * (side >> stage) ** 2
        for _ in range(blocks):
            weights, out = wide * inputs * 9, 4 * places * wide
            conv = Layer("conv2d", out, 4 * weights, 2.0 * places * weights)
            layers += [conv, Layer("batch_norm", out), Layer("relu", out)]
            inputs = wide
    return trained(4 * batch * side * side * 3, layers)


NETWORKS: dict[str, Callable[[], Trace]] = {"decoder": decoder, "convolutions": convolutions}


def compare(name: str) -> tuple[Row, Table]:
    """Return the figures of one network, and a table of all policies."""
    trace = NETWORKS[name]()
    found = _policies.compare(name, trace, MACHINE, SHARES, tuple(POLICIES))
    cells = [{key: value for key, value in asdict(cell).items() if key in _KEPT} for cell in found.cells]
    network = {"network": name, "ops": len(trace.ops), "peak_bytes": found.unswapped_bytes, "cells": cells}
    return network, _policies.table(found, len(trace.ops), SHARES, {})


def speed() -> Row:
    """Return how long simulations (median) and a plan take on a trace of about 10,000 ops."""
    trace = decoder(layers=209)
    peak = int(load_bytes(trace).max())
    thresholds = Thresholds(most=2000)
    found, planning = timed(lambda: plan_under_budget(trace, MACHINE, peak * 7 // 10, thresholds=thresholds))
    simulator, swaps = Simulator(trace, MACHINE), found.plan.swaps[:1000]
    columns = simulator.columns(swaps)
    ways = {
        "simulation": lambda: timed(lambda: simulator.run(columns))[1],
        "timeline": lambda: timed(lambda: simulator.timeline(swaps))[1],
    }
    return {
        "ops": len(trace.ops),
        "candidates": len(candidates(trace, thresholds)),
        "swaps": len(swaps),
        "overhead": found.timeline.overhead,
        "planning_seconds": round(planning, 2),
        **{f"{name}_ms": round(1000 * median(times), 3) for name, times in in_turn(ways, 21).items()},
    }


def table(figures: dict[str, Any]) -> Table:
    """Return how long planning and simulating took, beside what they may take."""
    speed = figures["speed"]
    ops = f"{speed['ops']:,} ops"
    rows = [
        [f"planning {ops}, {speed['candidates']:,} candidates", f"{speed['planning_seconds']:.1f} s", "5 s"],
        [f"simulating {ops}, {speed['swaps']:,} swaps", f"{speed['simulation_ms']:.2f} ms", "1 ms"],
    ]
    return Table("Speed", ["", "took", "bar"], rows)


def run(*, networks: Annotated[Sequence[str], {"choices": list(NETWORKS)}] = tuple(NETWORKS)) -> Iterator[Result]:
    """Compare the policies on each network, and time a large one."""
    found = [compare(name) for name in networks]
    figures = {"machine": MACHINE.name, "networks": [network for network, _ in found], "speed": speed()}
    yield Result("swapping", figures, [*(each for _, each in found), table(figures)])
