"""This process on the simulated H200: its ops, copies, plans and host take modelled times, and it computes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.common.paths import ROOT
from benchmarks.common.result import Row
from benchmarks.gpu.h200 import BYTES, FLOPS_EFFICIENCY, HOST, MACHINE

_PATHS = (str(ROOT), str(ROOT / "tests"))
SLOWER = 10  # times as long as on a GPU may a cell take here
_begun: list[tuple[Any, int]] = []


def is_simulated() -> bool:
    """Whether this process runs on the simulated GPU."""
    return "SIMULATED_GPU" in os.environ


def begin(**host: float) -> Any:
    """Let this process take an H200's times, with another `host` in these respects; return the simulated GPU."""
    import torch

    from benchmarks.common.waiting import count_plans
    from cuda_sim.simulator import Gpu, Host
    from memfit.tracing.roofline import accelerator_named

    gpu = Gpu()
    gpu.forget_values()
    taken = Host(**(HOST | host), both_factor=MACHINE.both_factor)
    h200 = replace(accelerator_named("h200"), flops_efficiency=FLOPS_EFFICIENCY)
    gpu.keep_time(h200, MACHINE.into, taken)
    count_plans(gpu, taken.planning)
    torch.backends.cudnn.enabled = False  # its batch norms are not simulated,
    torch.backends.cuda.enable_flash_sdp(False)  # nor are these kernels
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    _begun.append((gpu, gpu.count("now")))
    return gpu


def elapsed_s() -> float | None:
    """Return the virtual clock's seconds since `begin`; None where it has not been called."""
    return (_begun[0][0].count("now") - _begun[0][1]) / 1e9 if _begun else None


def outcome_of(module: str, request: Row, limit_s: float, *packages: str) -> Row:
    """Run a module on the simulator with a request; return its last line, which is JSON.

    It imports from `packages` first. Raises RuntimeError where it fails.
    """
    done = on_simulator(["-W", "ignore", "-m", module, json.dumps(request)], *packages, capture_output=True, text=True,
                        timeout=limit_s)  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{request}: {done.stderr[-4000:]}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def on_simulator(arguments: Sequence[str], *packages: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python on a simulated GPU of an H200's size; `options` are those of `subprocess.run`."""
    command = [sys.executable, "-W", "ignore", "-m", "cuda_sim.simulator", str(BYTES), *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join((*packages, *_PATHS))}, **options)
