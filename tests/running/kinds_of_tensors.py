"""A tensor of each kind that has no bytes of its own, or more than one place of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parameter import UninitializedParameter


class Bare(torch.Tensor):
    """A wrapper subclass whose class says nothing of what it holds; it answers for no op."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, *held: Tensor) -> Tensor:
        return torch.Tensor._make_wrapper_subclass(cls, held[0].shape, dtype=torch.float32, device=held[0].device)

    def __init__(self, *held: Tensor) -> None:
        self.codes, self.scale = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))


class Quantized(Bare):
    """One whose class says it."""

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(held, about, size, stride):
        return Quantized(held["codes"], held["scale"])


class Broken(Bare):
    """One whose class fails to."""

    def __tensor_flatten__(self):
        raise ValueError("not yet")


def codes(seed: int) -> Tensor:
    return torch.arange(6, dtype=torch.int8).reshape(2, 3) + seed


def scale(seed: int) -> Tensor:
    return torch.tensor(1.0 + seed)


def per_channel(seed: int) -> Tensor:
    scales, zeros = torch.tensor([0.5, 1.0 + seed]), torch.zeros(2, dtype=torch.long)
    return torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8)


def fake(seed: int) -> Tensor:
    with FakeTensorMode():
        return torch.empty(3)


def sparse(seed: int) -> Tensor:
    return torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0 + seed], (3,))


READABLE: dict[str, Callable[[int], Tensor]] = {
    "dense": lambda seed: torch.ones(3) + seed,
    "view": lambda seed: (torch.ones(4, 4) + seed).t()[1:],
    "wrapper": lambda seed: Quantized(codes(0), scale(seed)),
    "wrapper of wrappers": lambda seed: Quantized(Quantized(codes(seed), scale(0)), scale(0)),
    "jagged": lambda seed: torch.nested.nested_tensor([torch.ones(2), torch.ones(3) + seed], layout=torch.jagged),
    "nested": lambda seed: torch.nested.nested_tensor([torch.ones(2), torch.ones(3) + seed]),
    "coo": sparse,
    "csr": lambda seed: (torch.eye(3) * (seed + 1)).to_sparse_csr(),
    "csc": lambda seed: (torch.eye(3) * (seed + 1)).to_sparse_csc(),
    "bsr": lambda seed: (torch.eye(4) * (seed + 1)).to_sparse_bsr((2, 2)),
    "quantized": lambda seed: torch.quantize_per_tensor(torch.ones(3), 0.5 + seed, 0, torch.quint8),
    "quantized by channel": per_channel,
    "zeros without bytes": lambda seed: torch._efficientzerotensor((3 + seed,)),
    "empty": lambda seed: torch.empty(0, 2 + seed),
    "scalar": lambda seed: torch.tensor(seed),
    "parameter": lambda seed: torch.nn.Parameter(torch.ones(3) + seed),
}
"""Two of one kind with other seeds have other contents."""

UNREADABLE: dict[str, Callable[[], Tensor]] = {
    "wrapper that says nothing": lambda: Bare(codes(0), scale(0)),
    "wrapper that fails to say it": lambda: Broken(codes(0), scale(0)),
    "meta": lambda: torch.empty(3, device="meta"),
    "fake": lambda: fake(0),
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "without a shape": UninitializedParameter,
}
