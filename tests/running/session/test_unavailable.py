"""An access that memfit does not see is one clear error that says where it is, and never one of the budget."""

from __future__ import annotations

from types import FunctionType

import pytest
import torch

import memfit
from memfit.errors import UsageError
from memfit.running import engine
from running.pressure import BUDGET, evicted, ramp

pytestmark = pytest.mark.timeout(120)


def unseen(tensor: torch.Tensor) -> int:
    """Take an address as C++ code would."""
    return int(engine.load().original_of(torch.Tensor.data_ptr)(tensor))


@torch.jit.script
def listed(x: torch.Tensor) -> list[float]:
    values: list[float] = x.tolist()
    return values


def test_an_unseen_access_is_an_error_of_its_own_that_names_the_line_and_the_call():
    with pytest.raises(memfit.AccessError, match="not an op") as caught, memfit.session(BUDGET, "ram"):
        tensor = evicted()
        unseen(tensor)
    error = caught.value
    assert not isinstance(error, memfit.BudgetError) and error.exit_code == 6
    assert error.source == f"{__file__}:{unseen.__code__.co_firstlineno + 2}"
    assert error.source in str(error) and "unseen" in error.door


@pytest.mark.unmapped
def test_it_is_told_from_an_earlier_refusal_that_was_caught():
    with pytest.raises(memfit.AccessError), memfit.session(BUDGET, "ram"):
        tensor = evicted()
        with pytest.raises(memfit.BudgetError):
            torch.zeros(BUDGET)
        unseen(tensor)


def test_torchscript_s_tolist_is_refused_by_name():
    assert listed(ramp())[3] == 3
    with pytest.raises(memfit.AccessError, match="TorchScript"), memfit.session(BUDGET, "ram"):
        listed(evicted())


def test_a_compiled_kernel_s_access_names_torch_compile_in_one_line():
    written = {"__name__": "generated", "extern_kernels": None, "assert_size_stride": None, "unseen": unseen}
    call = FunctionType(compile("def call(t): return unseen(t)", "out.py", "exec").co_consts[0], written)
    with pytest.raises(UsageError, match="torch.compile") as caught, memfit.session(BUDGET, "ram"):
        call(evicted())
    assert __file__ in str(caught.value) and len(str(caught.value).splitlines()) == 3


def test_the_native_stack_is_left_out():
    with pytest.raises(memfit.AccessError) as caught, memfit.session(BUDGET, "ram"):
        try:
            unseen(evicted())
        except RuntimeError as error:
            raise RuntimeError(f"{error}\nException raised from throw_data_ptr_access_error\nframe #0") from None
    assert "frame #0" not in str(caught.value) + str(caught.value.__cause__)
