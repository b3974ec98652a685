"""The device whose memory a session governs, and the particulars of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from memfit import ranks
from memfit.errors import InputError, UsageError
from memfit.running.engine.patching import replaced

_LEAST_CUDA_CHUNK_BYTES, _MOST_CUDA_CHUNK_BYTES = 64 << 20, 256 << 20
_CUDA_CHUNKS = 64  # a list op's part of the budget, within these limits
_FEWEST_CHUNKS = 8  # however small the budget is


def parse_device(text: str) -> torch.device:
    """Read "auto" (the current GPU, or the rank's, if torch has one, otherwise the CPU), "cpu", "cuda" or "cuda:N".

    Raises InputError for anything else, or for a GPU that is not there.
    """
    if text == "auto":
        text = f"cuda:{_current_gpu()}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(text)
    except RuntimeError as error:
        raise _no_device(text, "torch has no such device") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise _no_device(text, "a session governs the memory of the CPU or of one CUDA GPU")
    if torch.version.hip is not None:
        raise InputError(
            f"memfit cannot govern {device}",
            why="this torch is built for AMD's GPUs (ROCm), and memfit's engine for those of NVIDIA and for the CPU",
            remedy="--device cpu, for tensors on the CPU; what torch allocates on the GPU is in no budget then",
        )
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or (device.index or 0) >= count:
        raise _no_device(text, f"torch sees {count} CUDA GPUs")
    return torch.device("cuda", _current_gpu() if device.index is None else device.index)


def _current_gpu() -> int:
    """Return the current GPU or, where none was chosen yet, the one that LOCAL_RANK says this process will choose.

    Raises InputError for a rank that has none: two sessions that govern one GPU count each other's bytes.
    """
    current, local, count = torch.cuda.current_device(), ranks.local_rank(), torch.cuda.device_count()
    if current or local is None or count == 1:  # a launcher that shows each rank its own GPU alone has chosen
        return current
    if local >= count:
        raise InputError(
            f"there is no GPU for the process of LOCAL_RANK {local}",
            why=f"torch sees {count} CUDA GPUs, and each process of a machine governs one of its own",
            remedy=f"start at most {count} processes on this machine, or name a GPU: --device cuda:0",
        )
    return local


def about_others(device: torch.device) -> str:
    """Return a sentence on the GPUs that a session on `device` leaves alone; "" where there are none, or in a rank."""
    others = torch.cuda.device_count() - 1 if device.type == "cuda" and ranks.local_rank() is None else 0
    if others < 1:
        return ""
    others_are = "1 other GPU, which is" if others == 1 else f"{others} other GPUs, which are"
    return f"the budget is that of {device} alone; torch sees {others_are} left as without memfit"


def _no_device(text: str, why: str) -> InputError:
    return InputError(f"there is no device '{text}'", why=why, remedy="--device cpu, or --device cuda:0; memfit doctor")


def shares_host_memory(device: torch.device) -> bool:
    """Whether the device's memory is the host's own: that of the CPU, and of an integrated GPU (Jetson, DGX Spark)."""
    if device.type != "cuda":
        return True
    return torch.cuda.is_available() and bool(torch.cuda.get_device_properties(device).is_integrated)


def default_tier(device: torch.device) -> str:
    """Return the tier for swapped-out bytes: page-locked host memory for a GPU that has its own, otherwise a file."""
    return "disk" if shares_host_memory(device) else "ram"


def chunk_bytes(device: torch.device, budget_bytes: int | None) -> int:
    """Return the most bytes of tensors that an op on lists may take at once.

    On a GPU each part is a kernel launch: at 256 MiB that is no part of its time, and more of the budget need not be
    there at once.
    """
    if device.type != "cuda":
        return 1 << 18
    whole = budget_bytes or torch.cuda.get_device_properties(device).total_memory
    part = min(max(whole // _CUDA_CHUNKS, _LEAST_CUDA_CHUNK_BYTES), _MOST_CUDA_CHUNK_BYTES)
    return min(part, whole // _FEWEST_CHUNKS)


@contextmanager
def entered(device: torch.device) -> Iterator[None]:
    """Prepare the device for a session that begins, and clean up when it has ended."""
    if device.type != "cuda":
        yield
        return
    graph = torch.cuda.CUDAGraph
    with torch.cuda.device(device), replaced(graph, "capture_begin", _no_graphs), replaced(graph, "replay", _no_graphs):
        free_workspaces(device)
        yield


def free_workspaces(device: torch.device) -> None:
    """Let cuBLAS allocate its workspaces anew when it needs them next: inside the budget, or outside again."""
    if device.type == "cuda":
        torch._C._cuda_clearCublasWorkspaces()


def _no_graphs(*_: Any, **__: Any) -> None:
    raise UsageError(
        "a CUDA graph can be neither captured nor replayed in a memfit session",
        why="a graph keeps the addresses it was captured with, and the session moves what lies there",
        remedy="train without graphs (torch.compile without mode='reduce-overhead'), or without a session",
    )
