"""Compiled functions of other libraries are ops: what they have the address of stays, and what they write is kept."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import cpp_extension

import memfit
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.doors import extensions
from memfit.running.session import Session
from running.children import script_prints
from running.doors.outside import through_ctypes
from running.plainly import same_bits
from running.planned.training import plan_at_fixed_steps
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
NAME = "memfit_tested_extension"


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ModuleType:
    """The library, built and loaded as its user does it."""
    folder = tmp_path_factory.mktemp("extension")
    return cpp_extension.load(NAME, [str(Path(__file__).with_name("extension.cpp"))], extra_cflags=["-O1"],
                              build_directory=str(folder))  # fmt: skip


def another(library: ModuleType, folder: Path) -> ModuleType:
    """Load a copy of the library, which is one of its own."""
    file = shutil.copy(library.__file__, folder / "copy.so")
    spec = importlib.util.spec_from_file_location(f"another.{NAME}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_its_functions_are_what_they_were_after_a_session(library):
    before = dict(vars(library))
    with memfit.session(BUDGET, "ram"):
        assert torch.equal(library.doubled(ramp()), 2 * ramp())
    assert dict(vars(library)) == before
    ordinary = torch.ones(3)
    library.add_one(ordinary)
    assert torch.equal(library.doubled(ordinary), torch.full((3,), 4.0))


def test_what_it_has_the_address_of_stays_while_it_makes_room_for_more(library):
    with memfit.session(BUDGET, "ram"):
        kept = [torch.full((COUNT,), float(number)) for number in range(4)]  # all of the budget
        for number, tensor in enumerate(kept):
            assert torch.equal(library.doubled(tensor), torch.full((COUNT,), 2.0 * number))


def calls(library: ModuleType) -> dict[str, Callable[[Tensor], Any]]:
    """Return calls that add one to a tensor of ones, by how they are made."""
    scaler = library.Scaler(2.0)
    return {
        "a function": library.add_one,
        "by keyword": lambda tensor: library.add_one(target=tensor),
        "of a submodule": library.inner.add_one,
        "a method": scaler.scale,
        "of a class": library.Scaler.add_one,
        "by an attribute": lambda tensor: setattr(scaler, "target", tensor),
        "in lists": lambda tensor: library.descend([tensor], [torch.ones(COUNT)], -1.0),
    }


CALLS = ["a function", "by keyword", "of a submodule", "a method", "of a class", "by an attribute", "in lists"]


def test_the_calls_that_are_tested_are_all(library):
    assert list(calls(library)) == CALLS


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("early", [True, False], ids=["taken before the session", "taken in it"])
def test_what_is_away_comes_in_and_what_is_written_is_kept(library, name, early):
    taken = calls(library)[name]
    with memfit.session(BUDGET, "ram"):
        call = taken if early else calls(library)[name]
        tensor = evicted(torch.ones(COUNT))
        tensor.sum()  # comes in, and the copy outside stays good
        call(tensor)
        press()
        assert not is_resident(tensor)
        assert torch.equal(tensor, torch.full((COUNT,), 2.0))
        press()
        call(tensor)
        assert tensor[-1].item() in (3.0, 4.0)


def test_tensors_are_found_in_lists_in_dicts(library):
    with memfit.session(BUDGET, "ram"):
        away = [evicted(torch.full((COUNT,), float(number))) for number in (1, 2)]
        press()
        assert library.total({"a": [away[0]], "b": [away[1]]}) == 3.0


def test_a_function_may_have_any_keywords(library):
    with memfit.session(BUDGET, "ram"):
        tensor = evicted(torch.ones(COUNT))
        library.increased(function=tensor, name=2.5)
        press()
        assert tensor[0].item() == 3.5


def test_a_call_without_tensors_is_no_op(library):
    with memfit.session(BUDGET, "ram") as session:
        torch.ones(3).add_(1)
        before = session.stats.ops
        assert library.answer() == 42
        assert session.stats.ops == before
        library.add_one(torch.ones(3))
        assert session.stats.ops == before + 2


def test_an_error_inside_is_the_functions_own_and_ends_the_op(library):
    with memfit.session(BUDGET, "ram"):
        tensor = ramp()
        with pytest.raises(ValueError, match="not this one"):
            library.failing(tensor)
        assert engine.load().in_use() == [0, 0, 0]
        press()
        assert not is_resident(tensor) and torch.equal(tensor, ramp())


@pytest.mark.copied("what there is no room for")
def test_tensors_that_are_too_large_together_are_refused_before_it_runs(library):
    with memfit.session(BUDGET, "ram"):
        tensors = [evicted(torch.ones(COUNT)) for _ in range(5)]
        with pytest.raises(BudgetError, match=f"{NAME}::descend") as caught:
            library.descend(tensors, tensors, 1.0)
        assert caught.value.required_bytes >= 5 * tensors[0].nbytes > BUDGET
        assert engine.load().in_use() == [0, 0, 0]
        assert all(torch.equal(tensor, torch.ones(COUNT)) for tensor in tensors)


def test_one_that_is_loaded_in_a_session_is_seen_as_well(library, tmp_path):
    with memfit.session(BUDGET, "ram"):
        late = another(library, tmp_path)
        tensor = evicted(torch.ones(COUNT))
        late.add_one(tensor)
        press()
        assert torch.equal(tensor, torch.full((COUNT,), 2.0))


def test_torchs_own_functions_are_no_ops(library):
    assert library.__file__ in engine.load().libraries_with_torch()
    with memfit.session(BUDGET, "ram") as session:
        tensor = torch.ones(3)
        before = session.stats.ops
        torch._C._get_tracing_state()
        torch._C._is_alias_of(tensor, tensor)
        assert session.stats.ops == before


def test_a_function_that_outlived_its_module_is_seen(library, tmp_path):
    add_one = another(library, tmp_path).add_one
    with memfit.session(BUDGET, "ram"):
        tensor = evicted(torch.ones(COUNT))
        add_one(tensor)
        press()
        assert torch.equal(tensor, torch.full((COUNT,), 2.0))


def test_sessions_one_after_another_find_the_same_functions(library):
    def found() -> int:
        return len(engine.load().parts_of([library.__file__])[0])

    with memfit.session(BUDGET, "ram"):
        pass
    before = found()
    for _ in range(3):
        with memfit.session(BUDGET, "ram"):
            library.add_one(torch.ones(3))
    assert found() == before


class Unseen:
    """A compiled function of a form of its own, as nanobind's and Cython's are."""

    def __call__(self, tensor: Tensor) -> None:
        address = engine.load().original_of(Tensor.data_ptr)(tensor)
        through_ctypes(address, tensor.numel())[:] += 1


def test_functions_of_other_forms_are_ops_too(monkeypatch):
    module, function = ModuleType("other"), Unseen()
    module.add_one = function
    monkeypatch.setattr(engine.load(), "libraries_with_torch", lambda: ["/other.so"])
    monkeypatch.setattr(engine.load(), "parts_of", lambda paths: ([], [module] if paths == ["/other.so"] else []))
    with memfit.session(BUDGET, "ram"):
        tensor = evicted(torch.ones(COUNT))
        tensor.sum()  # comes in, and the copy outside stays good
        module.add_one(tensor)
        press()
        assert torch.equal(tensor, torch.full((COUNT,), 2.0))
    assert module.add_one is function


def test_where_there_are_too_many_functions_that_is_said(library, monkeypatch, capsys):
    native = engine.load()

    def full(function: object) -> object:
        raise TypeError("this function cannot be redirected")

    monkeypatch.setattr(native, "original_of", full)
    with ExitStack() as stack:
        extensions.Answers(native, stack).cover()
    assert f"functions of {NAME} are not seen" in capsys.readouterr().err


def trained(library: ModuleType, steps: int = 25) -> list[Tensor]:
    """Train with a fused optimizer of the library's."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    momentum = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)  # whose step tells where an iteration ends
    for _ in range(steps):
        x = torch.randn(512, 64)
        for layer in net:
            x = layer(x).tanh()
        x.square().mean().backward()
        parameters = list(net.parameters())
        library.descend([p.data for p in parameters], [p.grad for p in parameters], 0.1)
        for parameter in parameters:
            parameter.grad = None
        momentum.step()
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.usefixtures("on_its_own")
@pytest.mark.unstressed("how many iterations run by a plan")
def test_it_is_in_the_plan(library, monkeypatch):
    plan_at_fixed_steps(monkeypatch)
    # A user has the module in one of its own. (That the fixture holds it is not seen: the collector's list is frozen.)
    monkeypatch.setattr(sys.modules[__name__], "held_by_hand", library, raising=False)
    plain = trained(library)
    with Session("60%", "ram", device="cpu", grow=False) as session:
        limited = trained(library)
    assert same_bits(plain, limited)
    assert session.planned_iterations >= 12 and session.stats.derailments == 0 and session.stats.swaps > 0
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes
    assert f"{NAME}::descend" in {op.name for op in session.trace.ops}


def test_the_engine_is_no_other_library_where_it_was_built_in_this_process(tmp_path: Path):
    """What loads it first is torch's builder, from a folder that is gone afterwards."""
    lines = script_prints(tmp_path, """
        import os, tempfile, torch, memfit
        from memfit.running import engine
        from memfit.running.engine import loader
        library = loader.build()
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            built = os.path.join(folder, library.name)
            os.link(library, built)
            torch.ops.load_library(built)
            engine.load()
        with memfit.session(1 << 24, "ram", device="cpu"):
            print(torch.ones(8).sum().item(), engine.load().libraries_with_torch().count(built))
        print(engine.load().active())
    """)  # fmt: skip
    assert lines == ["8.0 0", "False"]
