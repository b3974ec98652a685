"""Swap plans on synthetic networks: every policy's added time, and how long simulating and planning take.

Nobody has to run these networks: their ops take what their bytes and multiplications take on a GPU of given rates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from statistics import median
from typing import Annotated, Any

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


class Network:
    """Layers that remember what their backward needs."""

    def __init__(self) -> None:
        self.builder = TraceBuilder(alignment=512)
        self.tape: list[Callable[[int], int]] = []
        self.updates: list[tuple[int, ...]] = []

    def op(self, name: str, reads: list[int], outputs: list[int], phase: Phase, flops: float = 0.0) -> list[int]:
        """Add an op that is bound by its bytes or its multiplications."""
        moved = sum(self.builder.rows[s].size_bytes for s in reads) + sum(outputs)
        us = LAUNCH_US + max(moved / BYTES_PER_US, flops / FLOPS_PER_US)
        return self.builder.op(name, reads=reads, outputs=outputs, duration_us=us, phase=phase)

    def weight(self, size_bytes: int) -> int:
        """Add a parameter with two optimizer states of its size."""
        weight = self.builder.before(size_bytes)
        states = [self.builder.before(size_bytes, Category.OPTIMIZER_STATE) for _ in range(2)]
        self.updates.append((weight, *states))
        return weight

    def product(self, name: str, x: int, out_bytes: int, weight_bytes: int, flops: float) -> int:
        """A product with a weight: the backward makes two gradients and needs the input."""
        weight = self.weight(weight_bytes)
        (y,) = self.op(name, [x, weight], [out_bytes], Phase.FORWARD, flops)

        def backward(grad: int) -> int:
            (dw,) = self.op(f"{name}_weight_grad", [grad, x], [weight_bytes], Phase.BACKWARD, flops)
            (dx,) = self.op(f"{name}_grad", [grad, weight], [self.size(x)], Phase.BACKWARD, flops)
            self.gradients[weight] = dw
            self.builder.free(grad, y)
            return dx

        self.tape.append(backward)
        return y

    def pointwise(self, name: str, x: int) -> int:
        """An element-wise op whose backward needs its output."""
        (y,) = self.op(name, [x], [self.size(x)], Phase.FORWARD)

        def backward(grad: int) -> int:
            (dx,) = self.op(f"{name}_backward", [grad, y], [self.size(x)], Phase.BACKWARD)
            self.builder.free(grad, y)
            return dx

        self.tape.append(backward)
        return y

    def size(self, storage: int) -> int:
        """Return the bytes of a storage."""
        return self.builder.rows[storage].size_bytes

    def finish(self, x: int) -> Trace:
        """Add the loss, the backward part and the optimizer, and return the trace."""
        self.gradients: dict[int, int] = {}
        (grad,) = self.op("loss", [x], [self.size(x)], Phase.BACKWARD)
        for backward in reversed(self.tape):
            grad = backward(grad)
        self.builder.free(grad)
        for weight, *states in self.updates:
            gradient = self.gradients[weight]
            us = LAUNCH_US + 6 * self.size(weight) / BYTES_PER_US
            self.builder.op("adam", reads=[gradient], writes=[weight, *states], duration_us=us, phase=Phase.OPTIMIZER)
            self.builder.free(gradient)
        return self.builder.build()


def decoder(layers: int = 24, width: int = 1024, tokens: int = 8192) -> Trace:
    """Return a decoder of two-byte numbers: seven products and their element-wise ops a layer."""
    network = Network()
    x = network.builder.alloc(2 * tokens * width)
    for _ in range(layers):
        for share in (1, 1, 1, 1, 4, 1):
            x = network.pointwise("norm", x)
            flops = 2.0 * tokens * width * width * share
            x = network.product("mm", x, 2 * tokens * width, 2 * width * width * share, flops)
            x = network.pointwise("gelu", x)
    return network.finish(x)


def convolutions(stages: int = 4, blocks: int = 6, batch: int = 64, side: int = 56, channels: int = 64) -> Trace:
    """Return a convolutional net of four-byte numbers: each stage halves the sides and doubles the channels."""
    network = Network()
    x = network.builder.alloc(4 * batch * side * side * 3)
    inputs = 3
    for stage in range(stages):
        wide, high = channels << stage, side >> stage
        for _ in range(blocks):
            flops = 2.0 * batch * high * high * wide * inputs * 9
            x = network.product("conv2d", x, 4 * batch * high * high * wide, 4 * wide * inputs * 9, flops)
            x = network.pointwise("batch_norm", x)
            x = network.pointwise("relu", x)
            inputs = wide
    return network.finish(x)


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
