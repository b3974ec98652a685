"""torch.compile in a session gives what it gives plainly: its kernels find their tensors, and their writes are kept."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

import memfit
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.running.session import chunking
from memfit.running.session.active import Running
from running.doors.outside import through_ctypes
from running.plainly import descend, same_bits
from running.pressure import BUDGET, evicted, is_resident, press, ramp

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def add_one_unseen(*args: object) -> None:
    """Write as a generated kernel does, to memory whose address it asks for in C."""
    for tensor in args:
        if isinstance(tensor, torch.Tensor):
            address = engine.load().original_of(torch.Tensor.data_ptr)(tensor)
            through_ctypes(address, tensor.numel())[:] += 1


@pytest.fixture
def wrapper(tmp_path, monkeypatch) -> ModuleType:
    """A module such as inductor writes and loads, with one kernel."""
    from torch._inductor.codecache import PyCodeCache

    module = ModuleType("generated")
    module.__file__ = str(tmp_path / "generated.py")
    (tmp_path / "generated.py").write_text("cpp_fused_add_0 = async_compile.cpp_pybinding(['float*'], '''...''')\n")
    module.cpp_fused_add_0 = add_one_unseen
    monkeypatch.setattr(PyCodeCache, "modules", [module])
    return module


def test_what_a_kernel_writes_to_a_tensor_that_came_in_clean_is_kept(wrapper):
    with memfit.session(BUDGET, "ram"):
        tensor = evicted()
        tensor.sum()  # comes in, and the copy outside stays good
        wrapper.cpp_fused_add_0(tensor, 3)
        press()
        wrapper.cpp_fused_add_0(tensor, 3)
        press()
        assert not is_resident(tensor)
        assert torch.equal(tensor, ramp() + 2)
    assert wrapper.cpp_fused_add_0 is add_one_unseen


@pytest.mark.copied("what there is no room for")
def test_a_kernel_that_needs_more_than_the_budget_is_refused_by_its_name(wrapper):
    with memfit.session(BUDGET, "ram"):
        tensors = [evicted() for _ in range(5)]
        with pytest.raises(BudgetError, match="cpp_fused_add_0") as caught:
            wrapper.cpp_fused_add_0(*tensors)
        assert caught.value.required_bytes == sum(tensor.nbytes for tensor in tensors) > BUDGET
        press()
        assert not any(is_resident(tensor) for tensor in tensors[:4])


def test_the_compiler_does_not_take_memfit_s_own_code_for_the_program_s(monkeypatch):
    """As in Keras, whose whole step is compiled, with breaks, and which has no optimizer of torch's."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    seen = []
    monkeypatch.setattr(Running, "_period_found", lambda _: seen.append(get_eval_frame_callback()))
    weights = [torch.randn(48, 48, requires_grad=True) for _ in range(6)]

    @torch.compile(backend="eager")
    def step(value: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            value = (value @ weight).tanh()
            torch._dynamo.graph_break()
        loss = value.square().mean()
        loss.backward()
        return loss

    with memfit.session(None):
        for _ in range(60):
            step(torch.randn(16, 48)).item()
    assert seen and seen == [None] * len(seen)


def test_list_ops_are_compiled_as_they_are_without_a_session(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "_foreach_neg", lambda tensors: calls.append(len(tensors)))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with chunking.installed(1):
        torch._foreach_neg([torch.ones(3)] * 4)
    assert calls == [4]


def train(backend: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    run = torch.compile(net, backend=backend)
    for _ in descend(optimizer, lambda: (run(torch.ones(64, 256)).relu() + 1).square().mean(), 4):
        pass
    return [parameter.detach().clone() for parameter in net.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_training_is_the_same_by_every_backend(backend):
    expected = train(backend)
    with memfit.session(2 * BUDGET, "ram") as session:
        got = train(backend)
        assert same_bits(got, expected)
        assert session.stats.bytes_in > 0


@pytest.mark.slow
def test_a_compiled_optimizer_step_is_the_same():
    def steps() -> torch.Tensor:
        torch.manual_seed(0)
        torch._dynamo.reset()
        net = torch.nn.Linear(128, 128)
        optimizer = torch.optim.AdamW(net.parameters())
        step = torch.compile(optimizer.step)
        for number in range(4):
            net(torch.ones(4, 128) * number).square().mean().backward()
            step()
            optimizer.zero_grad()
            torch.ones(200_000).add_(1)
        return net.weight.detach().clone()

    expected = steps()
    with memfit.session(BUDGET, "ram"):
        assert torch.equal(steps(), expected)
