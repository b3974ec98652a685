"""The CUDA device, on a simulated GPU. Each case runs in a process of its own, with the simulator loaded first."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cuda_sim import simulator

SMALL, USUAL, LARGE = 40 * simulator.MIB, 1 << 30, 64 << 30  # bytes: the first is easily full
SLOW = ("hundreds_of", "a_hundred_", "a_thousand_")

pytestmark = [
    pytest.mark.skipif(bool(simulator.missing()), reason=simulator.missing() or "it is all there"),
    pytest.mark.timeout(3600),
]


def cases(module: ModuleType) -> list[object]:
    """Return the module's functions that take a GPU and return nothing."""
    return [
        pytest.param(function, id=name, marks=[pytest.mark.slow] if name.startswith(SLOW) else [])
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and function.__annotations__.get("gpu") == "Gpu"
        and function.__annotations__["return"] == "None"
    ]


MODULES = [
    importlib.import_module(f"cuda_sim.{path.stem}") for path in sorted(Path(__file__).parent.glob("cases_*.py"))
]
ALL = [case for module in MODULES for case in cases(module)]


@pytest.mark.parametrize("case", ALL)
def test_on_a_simulated_gpu(case: Callable[[simulator.Gpu], None]) -> None:
    program = f"from cuda_sim.simulator import Gpu; import {case.__module__} as m; m.{case.__name__}(Gpu())"
    size = SMALL if "full_gpu" in case.__name__ else LARGE if "large_gpu" in case.__name__ else USUAL
    gpus = 2 if case.__module__ == "cuda_sim.cases_devices" else 1
    done = simulator.run(["-W", "ignore", "-c", program], size, timeout=3500,
                         gpus=gpus, peers="peers" in case.__name__)  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
