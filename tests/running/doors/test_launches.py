"""Kernels that Python launches, as Triton's are: their launches are ops, and pin nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import memfit
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.session import Session
from running.doors.outside import through_ctypes
from running.doors.scaled import trained
from running.plainly import same_bits
from running.planned.training import plan_at_fixed_steps
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
LAUNCHERS = {
    "triton.runtime.jit": "JITFunction",
    "torch._inductor.runtime.triton_heuristics": "CachingAutotuner",
}


def at(address: int, count: int) -> Tensor:
    return torch.from_numpy(through_ctypes(address, count))


class Launcher:
    """Asks every tensor for its address, then works through these alone, as Triton's does."""

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn

    def run(self, *args: Any, grid: tuple[int, ...], **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        seen = [(each.data_ptr(), each.numel()) if isinstance(each, Tensor) else each for each in given]
        torch.empty(COUNT)  # room for it might be where one of them was
        self.fn(*(at(*each) if isinstance(each, tuple) else each for each in seen))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)


def scale(x: Tensor, out: Tensor, by: float) -> None:
    torch.mul(x, by, out=out)


@pytest.fixture(params=LAUNCHERS)
def library(request, monkeypatch) -> ModuleType:
    """The library that has the launcher, with a class that does what its own does on a GPU."""
    module = ModuleType(request.param)
    setattr(module, LAUNCHERS[request.param], type("JITFunction", (Launcher,), {"run": Launcher.run}))
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


def launcher_of(library: ModuleType) -> Launcher:
    return getattr(library, LAUNCHERS[library.__name__])(scale)


def test_what_is_away_comes_in_and_what_is_written_is_kept_and_nothing_is_pinned(library):
    kernel = launcher_of(library)
    with memfit.session(BUDGET, "ram") as session:
        x, out = evicted(), evicted(torch.zeros(COUNT))
        out.sum()  # comes in, and the copy outside stays good
        kernel[(1,)](x, out=out, by=2.0)
        press()
        assert not is_resident(x) and not is_resident(out)
        assert torch.equal(out, 2 * ramp()) and torch.equal(x, ramp())
        before = session.stats.ops
        kernel[(1,)](x, out, 3.0)
        assert session.stats.ops == before + 1
        assert torch.equal(out, 3 * ramp())
        assert engine.load().may_leave(x) and engine.load().may_leave(out)


@pytest.mark.copied("what is only read")
@pytest.mark.parametrize(
    ("about", "dropped"),
    [
        ({"mutated_arg_names": []}, 1),
        ({"mutated_arg_names": ["in_ptr0"]}, 0),
        ({}, 0),
        ({"mutated_arg_names": [], "heuristic_type": "HeuristicType.USER_AUTOTUNE"}, 0),
    ],
    ids=["read", "mutated", "no list of what is mutated", "a user's names"],
)
def test_what_inductor_s_kernel_only_reads_is_not_taken_to_be_written(library, about, dropped):
    kernel = launcher_of(library)
    vars(kernel).update(about, triton_meta={"signature": {"in_ptr0": "*fp32", "out_ptr0": "*fp32", "by": "fp32"}})
    with memfit.session(BUDGET, "ram") as session:
        x, out = evicted(), evicted(torch.zeros(COUNT))
        before = session.stats
        kernel[(1,)](x, out, 2.0)
        press()
        assert not is_resident(x) and not is_resident(out)
        after = session.stats
        assert after.drops - before.drops == dropped and after.unseen_writes == 0
        assert torch.equal(out, 2 * ramp()) and torch.equal(x, ramp())


@pytest.mark.copied("what there is no room for")
def test_a_launch_that_needs_more_than_the_budget_is_refused_by_its_name(library):
    kernel = launcher_of(library)
    with memfit.session(BUDGET, "ram"):
        tensors = [evicted() for _ in range(5)]
        with pytest.raises(BudgetError, match="triton::scale"):
            kernel[(1,)](*tensors)


def test_after_the_session_it_is_launched_as_before(library):
    launcher, run = type(launcher_of(library)), type(launcher_of(library)).run
    with memfit.session(BUDGET, "ram"):
        assert launcher.run is not run
    assert launcher.run is run


def test_without_the_class_nothing_is_done(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", ModuleType("triton.runtime.jit"))
    with memfit.session(BUDGET, "ram"):
        assert torch.equal(ramp() + 1, ramp().add(1))


@pytest.mark.copied("what it may pin")
def test_an_address_that_a_custom_op_asks_for_holds_its_operands_until_it_ends():
    kept = torch.ones(COUNT)

    @torch.library.custom_op("memfit_tests::through_addresses", mutates_args=("out",))
    def through_addresses(x: Tensor, out: Tensor) -> None:
        source, target = x.data_ptr(), out.data_ptr()
        torch.empty(COUNT)
        at(target, COUNT).copy_(at(source, COUNT) + at(kept.data_ptr(), COUNT))

    with memfit.session(BUDGET, "ram"):
        x, out = evicted(), evicted(torch.zeros(COUNT))
        torch.ops.memfit_tests.through_addresses(x, out)  # (from 2.14 on, torch calls the function itself otherwise)
        press()
        assert not is_resident(x) and not is_resident(out)
        assert torch.equal(out, ramp() + 1)
        assert engine.load().may_leave(x) and not engine.load().may_leave(kept)  # which was none of its operands


def test_outside_an_op_an_address_is_good_for_good():
    with memfit.session(BUDGET, "ram"):
        tensor = ramp()
        assert not engine.load().is_operand(tensor)
        address = tensor.data_ptr()
        press()
        assert is_resident(tensor) and torch.equal(at(address, COUNT), ramp())


@pytest.mark.usefixtures("on_its_own")
@pytest.mark.unstressed("how many iterations run by a plan")
def test_launches_are_in_the_plan(library, monkeypatch):
    plan_at_fixed_steps(monkeypatch)
    kernel = launcher_of(library)

    def halve(x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        kernel[(1,)](x, out, 0.5)
        return out

    plain = trained(halve, 64, 512, 25)
    with Session("60%", "ram", device="cpu", grow=False) as session:
        limited = trained(halve, 64, 512, 25)
    assert same_bits(plain, limited)
    stats = session.stats
    assert session.planned_iterations >= 12 and stats.swaps > 0
    assert stats.peak_footprint_bytes <= stats.budget_bytes
    assert "triton::scale" in {op.name for op in session.trace.ops}
