"""This process on the simulated H200: its ops, copies, plans and host take modelled times, and it computes nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from benchmarks.gpu.h200 import FLOPS_EFFICIENCY, HOST, MACHINE

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
