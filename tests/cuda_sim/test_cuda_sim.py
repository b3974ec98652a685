"""The CUDA device, on a simulated GPU. Each case runs in a process of its own, with the simulator loaded first."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
from cuda_sim import cases_memory, cases_streams, cases_training, simulator

SMALL = 40 * simulator.MIB  # a GPU that is easily full
SLOW = ("hundreds_of", "a_hundred_", "a_thousand_")

pytestmark = [
    pytest.mark.skipif(bool(simulator.missing()), reason=simulator.missing() or "it is all there"),
    pytest.mark.timeout(900),
]


def cases(module: ModuleType) -> list[object]:
    functions = inspect.getmembers(module, inspect.isfunction)
    mine = [f for name, f in functions if f.__module__ == module.__name__ and list(inspect.signature(f).parameters)[:1] == ["gpu"]]
    return [
        pytest.param(f, id=f.__name__, marks=[pytest.mark.slow] if f.__name__.startswith(SLOW) else [])
        for f in mine
        if f.__name__ not in ("governed",)
    ]


ALL = [case for module in (cases_memory, cases_streams, cases_training) for case in cases(module)]


@pytest.mark.parametrize("case", ALL)
def test_on_a_simulated_gpu(case: Callable[[simulator.Gpu], None]) -> None:
    program = f"from cuda_sim.simulator import Gpu; import {case.__module__} as m; m.{case.__name__}(Gpu())"
    small = "full_gpu" in case.__name__
    done = simulator.run(["-W", "ignore", "-c", program], SMALL if small else 1 << 30, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
