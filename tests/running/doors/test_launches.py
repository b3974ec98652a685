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


def forget(*args: Any) -> None:
    """Do nothing before a launch."""


class Launcher:
    """Asks every tensor for its address, then works through these alone, as Triton's does.

    `hook` is the program's, and is called before each launch. `ask` is the launcher's own.
    """

    def __init__(self, fn: Callable[..., None]) -> None:
        self.fn = fn
        self.hook = forget

    def run(self, *args: Any, grid: tuple[int, ...], **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        self.hook(*given)
        seen = [(self.ask(each), each.numel()) if isinstance(each, Tensor) else each for each in given]
        torch.empty(COUNT)  # room for it might be where one of them was
        self.fn(*(at(*each) if isinstance(each, tuple) else each for each in seen))

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)


def scale(x: Tensor, out: Tensor, by: float) -> None:
    torch.mul(x, by, out=out)


GENERATED = """
def launcher(tensor):
    return tensor.data_ptr()
"""
ASKS = """
def ask(self, tensor):
    return tensor.data_ptr()
def through_generated(self, tensor):
    return launcher(tensor)
"""


@pytest.fixture(params=[(library, name) for library in LAUNCHERS for name in ("ask", "through_generated")])
def library(request, monkeypatch) -> ModuleType:
    """The library that has the launcher, with a class that does what its own does on a GPU.

    What asks is a function of that module; or one that was generated in none, as both libraries do, which it calls.
    """
    name, ask = request.param
    module = ModuleType(name)
    generated: dict[str, Any] = {}
    exec(GENERATED, generated)
    module.launcher = generated["launcher"]
    exec(ASKS, vars(module))
    own = {"run": Launcher.run, "ask": getattr(module, ask)}
    setattr(module, LAUNCHERS[name], type("JITFunction", (Launcher,), own))
    monkeypatch.setitem(sys.modules, name, module)
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


def test_a_hook_of_the_program_s_that_asks_in_a_launch_is_given_an_address_that_stays(library):
    kept = {}
    kernel = launcher_of(library)
    kernel.hook = lambda x, *others: kept.update(address=x.data_ptr())
    with memfit.session(BUDGET, "ram"):
        x, out = evicted(), evicted(torch.zeros(COUNT))
        kernel[(1,)](x, out, 2.0)
        press()
        assert is_resident(x) and not is_resident(out)
        assert torch.equal(at(kept["address"], COUNT), ramp()) and torch.equal(out, 2 * ramp())


def test_a_launcher_that_asks_for_what_it_was_not_given_gets_an_address_that_stays(library):
    """As for a tensor in a descriptor, which no launch's op has."""
    kernel, beside = launcher_of(library), torch.ones(COUNT)
    with memfit.session(BUDGET, "ram"):
        x, out = evicted(), evicted(torch.zeros(COUNT))
        kernel.hook = lambda *given: kernel.ask(beside)
        kernel[(1,)](x, out, 2.0)
        assert engine.load().may_leave(x) and not engine.load().may_leave(beside)


def test_outside_of_a_launch_its_functions_get_addresses_that_stay(library):
    with memfit.session(BUDGET, "ram"):
        tensor = ramp()
        assert not engine.load().is_operand(tensor)
        address = launcher_of(library).ask(tensor)
        press()
        assert is_resident(tensor) and torch.equal(at(address, COUNT), ramp())


@pytest.mark.long
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
