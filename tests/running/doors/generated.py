"""Calls that are ops as those of generated kernels are, and do with Python what such a kernel does in C++."""

from __future__ import annotations

from torch import Tensor

from memfit.running import engine
from running.doors.outside import through_ctypes


def add(target: Tensor, source: Tensor) -> None:
    """Write as a generated kernel does, to memory whose address it asks for in C."""
    address = engine.load().original_of(Tensor.data_ptr)
    through_ctypes(address(target), target.numel())[:] += through_ctypes(address(source), source.numel())[:]


def kernel(function, *, writes=(True, False)):
    """Return the function as a kernel that writes to some of its tensors."""
    return engine.load().kernel_as_op(function, "inductor::cpp_fused_add_0", [True] * len(writes), list(writes))
