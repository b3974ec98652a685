"""Kernels that do an operator in another way than torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

import memfit
from memfit.running import engine


class Forgetful:
    """A kernel that adds something whenever an input comes a second time: no re-run gives the bytes of the first."""

    def __init__(self) -> None:
        self.seen: set[tuple[float, ...]] = set()
        self.repeated = 0

    def silu(self, x: Tensor) -> Tensor:
        y = torch.sigmoid(x).mul_(x)
        known = (x.sum().item(), x[:4].square().sum().item())  # read by ops: a pointer would pin the input
        if known in self.seen:
            self.repeated += 1
            y.add_(1e-3)
        self.seen.add(known)
        return y


@contextmanager
def done_by(kernel: Callable[..., object], name: str, device: str) -> Iterator[None]:
    """Have `kernel` do an operator of torch's on a device ("CPU" or "CUDA"), and pass for torch's own."""
    if device == "CPU":
        with memfit.session("1GiB", "ram"):
            pass  # the first session of a process finds the kernels that slices call from then on: torch's own
    engine.load().trust_registered_kernels(True)
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, kernel, device)
    try:
        yield
    finally:
        library._destroy()
        engine.load().trust_registered_kernels(device == "CUDA")  # all those of a simulated GPU are trusted
