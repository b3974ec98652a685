"""Functions and classes that a random program's lines may name, beside torch's own."""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import pickle
import threading
import warnings
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from running.children import Child
from running.programs.contents import contents, read_plainly


def saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


# Plain torch would go out of bounds or use freed memory in the cases that these refuse.
def may_grow(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


def rebuild(tensor: torch.Tensor) -> None:
    """Give the storage new memory of the same size, zero but for the tensor."""
    if not may_grow(tensor):
        raise ValueError("its memory is not torch's own")
    before, storage = tensor.detach().clone(), tensor.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
    tensor.detach().copy_(before)


def hooked(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor * 2
    result.register_hook(lambda gradient: gradient + 1)
    result.retain_grad()
    return result


def share(tensor: torch.Tensor) -> None:
    if not tensor.untyped_storage().resizable():
        raise ValueError("a numpy array may look at it")
    tensor.share_memory_()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a composite's elements as an ordinary tensor."""
    if tensor.is_nested:
        return torch.nested.to_padded_tensor(tensor, 0.0)
    return tensor.dequantize() if tensor.is_quantized else tensor.to_dense()


def packed(network: torch.nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
    """Run over sequences of lengths that only a tensor knows."""
    sequences = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
    return torch.nn.utils.rnn.pad_packed_sequence(network(sequences)[0])[0]


def averaged(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(3):
        y.add_(x).mul_(0.5)
    return y


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is on its way out, and in use
    scripted = torch.jit.script(averaged)


class Breaks(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(str((gradient * 2).sum().item() != 0))


def breaks(x: torch.Tensor) -> torch.Tensor:
    """Raise in mid-forward, with a graph alive and results on the stack."""
    hidden = torch.tanh(x * 2)
    kept = [hidden.exp(), hidden + 1]
    raise ArithmeticError(len(kept))


def forked(tensor: torch.Tensor) -> str:
    """Return what a forked child reads of a tensor."""
    if tensor.is_cuda:
        raise ValueError("a forked child has no GPU")

    def digest() -> str:
        torch.set_num_threads(1)  # OpenMP's threads are the parent's: whoever divides work here waits for them for ever
        return hashlib.sha1(repr(contents(tensor.detach().clone(), read_plainly)).encode()).hexdigest()

    return Child(digest).answer()


class Worker:
    """Trains a small model in a thread beside the program, without random numbers: their order would be by chance."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x, self._losses = x, []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # noqa: B036
            self._error = error

    def _train(self) -> None:
        x = self._x
        weight = torch.linspace(-1, 1, x.shape[1] * 3, device=x.device).reshape(x.shape[1], 3).requires_grad_()
        for _ in range(4):
            loss = torch.tanh(x @ weight).square().sum()
            weight.grad = None
            loss.backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            self._losses.append(loss.item())

    def result(self) -> list[float]:
        """Return the losses, once all are known; raise what ended the training, as a budget too small for two may."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._losses


def step(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        states = [t for t in optimizer.state.get(parameter, {}).values() if torch.is_tensor(t) and t.dim()]
        if any(t.shape != parameter.shape for t in [*states, parameter.grad] if t is not None):
            raise ValueError("the parameter was resized")
    optimizer.step()


NAMES: dict[str, Any] = {
    "torch": torch, "F": F, "np": np, "copy": copy, "pickle": pickle, "gc": gc,
    "saved": saved, "rebuild": rebuild, "share": share, "step": step, "hooked": hooked, "dense": dense,
    "packed": packed, "scripted": scripted, "Breaks": Breaks, "breaks": breaks, "forked": forked, "Worker": Worker,
}  # fmt: skip
