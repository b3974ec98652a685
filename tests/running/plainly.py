"""The plain training loop, and programs that are run plainly and in a session to the same bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import memfit


def descend(optimizer: torch.optim.Optimizer, loss_of: Callable[[], Tensor], steps: int) -> Iterator[Tensor]:
    """The plain training loop: yields the loss of each step when the step has been made."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        optimizer.step()
        yield loss


def train_by_hand(steps: int) -> tuple[list[float], list[Tensor]]:
    """Train without an optimizer: an iteration is what the op stream repeats. Returns the losses and the weights."""
    torch.manual_seed(0)
    weights = [torch.randn(48, 48, requires_grad=True) for _ in range(6)]
    losses = []
    for _ in range(steps):
        value = torch.randn(16, 48)
        for weight in weights:
            value = (value @ weight).tanh()
        loss = value.square().mean()
        loss.backward()
        with torch.no_grad():
            for weight in weights:
                weight -= 0.1 * weight.grad
                weight.grad = None
        losses.append(loss.item())
    return losses, [weight.detach() for weight in weights]


def same_bits(one: object, other: object) -> bool:
    """Return whether two results are equal: tensors element by element, lists and dicts item by item."""
    if isinstance(one, Tensor):
        if one.layout is not torch.strided or one.is_nested or not isinstance(other, Tensor):
            return torch.equal(one, other)
        return one.dtype == other.dtype and one.shape == other.shape and torch.equal(bytes_of(one), bytes_of(other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same_bits, one, other))
    return one == other


def bytes_of(tensor: Tensor) -> Tensor:
    """Return what tells a NaN from another, and zero from its negative."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    return plain.new_empty(plain.numel()).copy_(plain.reshape(-1)).view(torch.uint8)


def as_plainly(program: Callable[[], object], *about: object, **options: object) -> memfit.Session:
    """Run `program` plainly and in a session, and compare what it returns bit by bit.

    The rest is what `memfit.session` takes. Returns the session, which has ended.
    """
    plain = program()
    with memfit.session(*about, **options) as session:
        limited = program()
    assert same_bits(plain, limited), "the session changed a bit"
    return session
