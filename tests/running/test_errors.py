"""Errors in the middle of a step under a tight budget: the session stays usable, nothing is lost, numbers are right."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit import BudgetError
from memfit.planning.lifetimes import minimum_budget
from memfit.units import format_bytes
from running.helpers_training import batches, mlp
from running.plainly import as_plainly, descend, same_bits, train_by_hand

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own"), pytest.mark.unmapped]

TIGHT = 60_000  # a linear layer's op takes 33 KB


class Failure(Exception):
    """What the tests raise themselves."""


class FailsIn(torch.autograd.Function):
    """Doubles its input, through tensors of its own; fails where it is told to."""

    where = ""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        doubled = x * 2
        if FailsIn.where == "forward":
            raise Failure("forward")
        ctx.save_for_backward(doubled)
        return doubled + 0

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (doubled,) = ctx.saved_tensors
        partly = gradient * 2 + doubled * 0
        if FailsIn.where == "backward":
            raise Failure("backward")
        return partly


def raise_failure(*_: object) -> None:
    raise Failure("hook")


def in_an_op(model: nn.Module, x: Tensor) -> None:
    model[0](x[:, :-1])


def in_an_inner_op(model: nn.Module, x: Tensor) -> None:
    torch.nn.functional.cross_entropy(model(x).expand(32, 10), torch.full((32,), 50))


def in_a_forward_hook(model: nn.Module, x: Tensor) -> None:
    hook = model[2].register_forward_hook(raise_failure)
    try:
        model(x)
    finally:
        hook.remove()


def in_a_gradient_hook(model: nn.Module, x: Tensor) -> None:
    hook = model[0].weight.register_hook(raise_failure)
    try:
        model(x).sum().backward()
    finally:
        hook.remove()


def in_a_function(where: str) -> Callable[[nn.Module, Tensor], None]:
    def fail(model: nn.Module, x: Tensor) -> None:
        FailsIn.where = where
        try:
            FailsIn.apply(model[0](x)).sum().backward()
        finally:
            FailsIn.where = ""

    return fail


def in_a_second_backward(model: nn.Module, x: Tensor) -> None:
    loss = model(x).square().sum()
    loss.backward()
    loss.backward()


FAILURES: dict[str, tuple[Callable[[nn.Module, Tensor], None], type[BaseException], str]] = {
    "op": (in_an_op, RuntimeError, "shapes cannot be multiplied"),
    "inner op": (in_an_inner_op, IndexError, "out of bounds"),
    "forward hook": (in_a_forward_hook, Failure, "hook"),
    "gradient hook": (in_a_gradient_hook, Failure, "hook"),
    "function forward": (in_a_function("forward"), Failure, "forward"),
    "function backward": (in_a_function("backward"), Failure, "backward"),
    "second backward": (in_a_second_backward, RuntimeError, "second time"),
}


def train(fail: Callable[[nn.Module, Tensor], None] | None, steps: int = 4) -> list[float]:
    """Losses of training in which each step is preceded by one that fails."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in batches(steps, 32, 64):
        if fail is not None:
            try:
                fail(model, x)
            except Exception as error:
                losses.append(type(error).__name__)
        optimizer.zero_grad()
        loss = FailsIn.apply(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", FAILURES)
def test_training_goes_on_after_an_exception_with_the_right_results(name):
    fail, error, _ = FAILURES[name]
    assert train(fail).count(error.__name__) == 4
    session = as_plainly(lambda: train(fail), TIGHT, "ram")
    assert session.stats.peak_footprint_bytes <= TIGHT and session.stats.bytes_out > 0


@pytest.mark.parametrize("name", FAILURES)
def test_an_exception_passes_through_the_session_as_it_is(name):
    fail, error, message = FAILURES[name]
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(32, 64)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=message) as caught, memfit.session(TIGHT, "ram"):
        fail(model, x)
    assert type(caught.value) is error and "memfit" not in str(caught.value)
    assert same_bits([*model.parameters()], before)


def test_many_failures_in_a_row_leave_no_bytes_in_use():
    model = mlp()
    with memfit.session(TIGHT, "ram") as session:
        x = torch.randn(32, 64)
        for name, (fail, error, _) in FAILURES.items():
            used = []
            for _ in range(5):
                with pytest.raises(error):
                    fail(model, x)
                model.zero_grad()
                gc.collect()
                used.append(session.stats.live_bytes)
            assert len(set(used[1:])) == 1, name


# --- a byte budget that is too small


def here(function: Callable[..., object], part: str) -> str:
    """The line of this file on which `function` has `part`."""
    lines, start = inspect.getsourcelines(function)
    (number,) = [start + offset for offset, text in enumerate(lines) if part in text]
    return f"test_errors.py:{number}"


def product(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def matrices(count: int = 4) -> list[Tensor]:
    return [torch.full((64, 64), float(i + 1)) for i in range(count)]


MATRIX = 64 * 64 * 4


def test_an_op_that_cannot_fit_raises_a_budget_error_with_op_line_and_numbers():
    kept = matrices()
    with pytest.raises(BudgetError) as caught, memfit.session(MATRIX * 2, "ram"):
        product(kept[0], kept[1])
    message = str(caught.value)
    assert "the budget of 32.00 KiB (32768 bytes) cannot be met: aten::mm needs at least" in message
    assert f"48.00 KiB ({3 * MATRIX} bytes) at once" in message
    assert "Float[64,64] of a storage of 16.00 KiB" in message
    assert here(product, "torch.mm") in message
    assert all(torch.equal(m, torch.full((64, 64), i + 1.0)) for i, m in enumerate(kept))


def test_a_budget_error_of_an_op_carries_what_it_knows_as_attributes():
    kept = matrices()
    with pytest.raises(BudgetError) as caught, memfit.session(MATRIX * 2, "ram"):
        product(kept[0], kept[1])
    error = caught.value
    assert error.required_bytes == 3 * MATRIX
    assert error.op == "aten::mm"
    assert error.source.endswith(here(product, "torch.mm"))
    assert len(error.tensors) >= 1


def test_inputs_that_do_not_fit_together_are_counted_once():
    """The op fails before it runs: two of its three inputs fit."""
    kept = matrices()
    with pytest.raises(BudgetError, match="aten::addmm") as caught, memfit.session(MATRIX * 5 // 2, "ram"):
        torch.addmm(kept[0], kept[1], kept[2])
    assert f"needs at least 48.00 KiB ({3 * MATRIX} bytes)" in str(caught.value)
    assert all(torch.equal(m, torch.full((64, 64), i + 1.0)) for i, m in enumerate(kept))


def test_a_tensor_larger_than_the_budget_is_named():
    with pytest.raises(BudgetError, match=r"needs at least .*\(400000 bytes\)"), memfit.session(100_000, "ram"):
        torch.zeros(100_000)


def test_room_that_small_storages_have_left_is_the_next_op_s():
    with memfit.session(1 << 16, "ram"):
        small = torch.zeros(16)
        del small
        assert torch.ones(63 << 8).sum() == 63 << 8


def test_the_smallest_tensor_requires_what_it_takes_in_the_arena():
    with pytest.raises(BudgetError) as caught, memfit.session(1, "ram"):
        torch.ones(10)
    with memfit.session(caught.value.required_bytes, "ram"):
        torch.ones(10)


def test_a_budget_error_is_a_runtime_error_the_script_can_handle_and_other_work_goes_on():
    with memfit.session(MATRIX * 7 // 2, "ram") as session:
        kept = matrices()
        for _ in range(3):
            try:
                torch.cat(kept)
            except RuntimeError as error:
                assert "cannot be met" in str(error)
            else:
                pytest.fail("no error")
            assert product(kept[0], kept[1])[0, 0].item() == 64 * 2
        assert session.stats.peak_footprint_bytes <= MATRIX * 7 // 2
    assert all(torch.equal(m, torch.full((64, 64), i + 1.0)) for i, m in enumerate(kept))


def test_training_goes_on_after_a_batch_that_was_too_large():
    plain = train(lambda model, _: model(torch.randn(128, 64)) is None)
    with memfit.session(TIGHT, "ram"):
        losses = train(lambda model, _: model(torch.randn(128, 64)) is None)
    assert losses.count("BudgetError") == 4
    assert [loss for loss in losses if loss != "BudgetError"] == plain


def test_a_budget_error_in_the_backward_pass_loses_no_weight_and_no_activation():
    torch.manual_seed(0)
    x = torch.randn(32, 64)

    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx, gradient: Tensor) -> Tensor:
            return gradient + torch.zeros(50_000).sum()

    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    model(x).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    with memfit.session(TIGHT, "disk"):
        h = model[1](model[0](x))
        with pytest.raises(BudgetError, match="200000 bytes"):
            Wide.apply(model[2](h)).sum().backward()
        model.zero_grad()
        model[4](model[3](model[2](h))).sum().backward()
    assert same_bits([*model.parameters()], before)
    assert same_bits([p.grad for p in model.parameters()], gradients)


def test_raw_memory_that_escaped_is_named_as_the_reason():
    with memfit.session(MATRIX * 4, "ram"):
        kept = matrices(2)
        arrays = [m.numpy() for m in kept]
        with pytest.raises(
            BudgetError, match=r"2 x 16\.00 KiB .* pinned because raw memory escaped \(numpy.* at .*test_errors\.py:\d+"
        ):
            torch.zeros(MATRIX * 3 // 4)
        del arrays


# --- a share that is too small


def trains(steps: int = 4, done: list[int] | None = None) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for step, x in enumerate(batches(steps, 32, 64)):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if done is not None:
            done.append(step)


def test_a_share_that_is_too_small_is_an_error_before_the_first_limited_iteration():
    done: list[int] = []
    with pytest.raises(BudgetError) as caught, memfit.session("5%", "ram") as session:
        trains(done=done)
    error = caught.value
    assert done == [0]  # the second optimizer step raises when it has been made
    needed, index = minimum_budget(session.trace)
    assert error.required_bytes == needed
    assert error.op == session.trace.ops[index].name and error.op in str(error)
    assert error.source == session.trace.ops[index].source
    assert error.source.endswith(here(trains, "optimizer.step()"))
    assert Path(error.source.rsplit(":", 1)[0]).is_file()
    assert error.tensors and all("B " in tensor for tensor in error.tensors)
    assert f"the smallest feasible budget is {format_bytes(needed)}, " in str(error)


def test_the_optimizer_step_that_raises_has_been_made_in_full():
    def weights(budget: str | None, ends: AbstractContextManager[object]) -> list[Tensor]:
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        with ends, memfit.session(budget, "ram"):
            for _ in descend(optimizer, lambda: model(torch.randn(32, 64)).square().mean(), 2):
                pass
        return [p.detach() for p in model.parameters()]

    assert same_bits(weights("5%", pytest.raises(BudgetError)), weights(None, nullcontext()))


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_ten_percent_more_than_what_is_required_is_enough(tier):
    with pytest.raises(BudgetError) as caught, memfit.session("5%", tier):
        trains()
    with memfit.session(caught.value.required_bytes * 11 // 10, tier) as session:
        trains()
    assert session.stats.bytes_out > 0


def test_what_an_op_says_it_requires_leads_to_a_budget_that_works():
    """Raise the budget to what each error asks for, with a tenth for holes: a few rounds must be enough."""
    budget = 5_000
    for _ in range(12):
        try:
            with memfit.session(budget, "ram"):
                trains()
            break
        except BudgetError as error:
            asked = int(str(error).split("needs at least ")[1].split("(")[1].split(" ")[0])
            assert asked * 11 // 10 > budget
            budget = asked * 11 // 10
    else:
        pytest.fail("no end of it")
    with memfit.session(None) as session:
        trains()
    assert budget <= minimum_budget(session.trace)[0] * 13 // 10


def test_a_share_that_is_too_small_is_an_error_without_an_optimizer_too():
    with pytest.raises(BudgetError, match="smallest feasible budget is") as caught, memfit.session("5%") as session:
        train_by_hand(200)
    needed, _ = minimum_budget(session.trace)
    assert caught.value.required_bytes == needed
    with memfit.session(needed * 11 // 10, "ram"):
        train_by_hand(5)
