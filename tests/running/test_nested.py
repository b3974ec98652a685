"""Calls inside of an op: what they are given that is not in use yet comes in, and what they write to is kept.

Nothing is recorded: while it is, every call is looked at.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memfit.running import engine
from memfit.running.session import Session
from running.pressure import BUDGET, COUNT, evicted, is_full_of, is_resident, press

pytestmark = pytest.mark.timeout(60)


def inside(budget: int = BUDGET) -> Session:
    return Session(budget, "ram", device="cpu", record=False)


def in_an_op(function: Callable[[Tensor], Tensor], operand: Tensor) -> Tensor:
    """Call the function as one op whose operand is the tensor; what it calls is nested."""
    return engine.load().call_as_op(function, "tests::outer", operand)


def test_what_only_a_nested_call_uses_comes_in():
    with inside():
        away = evicted()
        operand = torch.ones(4)
        found = in_an_op(lambda tensor: (away + 1).amax() + tensor.sum(), operand)
        assert found.item() == COUNT + 4


def test_what_a_nested_call_writes_to_after_others_have_read_it_is_kept():
    with inside() as session:
        tensor = evicted(torch.full((COUNT,), 1.0))

        def read_then_write(operand: Tensor) -> Tensor:
            before = tensor.sum() + tensor.amax() + operand.sum()  # comes in as the tier has it
            tensor.neg_()  # (a number would be a tensor that no op has had yet)
            return before

        assert in_an_op(read_then_write, torch.ones(4)).item() == COUNT + 1 + 4
        press()
        assert not is_resident(tensor)
        assert is_full_of(tensor, -1.0)
        assert session.stats.unseen_writes == 0


def test_a_result_of_a_nested_call_may_leave_though_no_op_returns_it():
    with inside():
        kept = []

        def keep(operand: Tensor) -> Tensor:
            kept.append(operand * 2)
            return operand.sum()

        in_an_op(keep, torch.ones(COUNT))
        assert engine.load().may_leave(kept[0])
        press()
        assert not is_resident(kept[0])
        assert is_full_of(kept[0], 2.0)


def test_memory_that_a_nested_call_frees_and_another_gets_is_another_storage():
    with inside():
        away = evicted()

        def reuse(operand: Tensor) -> Tensor:
            for number in range(20):
                scratch = operand + number  # each in the place of the one before
                operand.copy_(scratch)
                del scratch
            return operand + away[:4]

        assert in_an_op(reuse, torch.zeros(4)).tolist() == [190.0, 191.0, 192.0, 193.0]


@pytest.mark.parametrize("count", [4, 200])
def test_lists_of_many_tensors_are_written_to_inside_of_one_op(count):
    with inside() as session:
        tensors = [torch.full((256,), float(number)) for number in range(count)]

        def add(operand: Tensor) -> Tensor:
            for tensor in tensors:
                tensor.add_(operand[:256])
                tensor.neg_()
            return operand

        in_an_op(add, torch.ones(COUNT))
        press()
        assert all(is_full_of(tensor, -1.0 - number) for number, tensor in enumerate(tensors))
        assert session.stats.unseen_writes == 0


def test_what_autograd_saves_of_a_nested_call_may_leave():
    with inside(BUDGET + BUDGET // 2) as session:
        weight = torch.ones(COUNT // 4, requires_grad=True)
        rows = torch.ones(4, COUNT // 4, requires_grad=True)
        out = torch.nn.functional.layer_norm(rows, (COUNT // 4,), weight)
        press()
        out.sum().backward()
        assert is_full_of(weight.grad, 0.0) and session.stats.evictions > 0
