"""torch.compile in a session gives what it gives plainly: its kernels find their tensors, and their writes are kept."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import memfit
from libraries import importing
from memfit.errors import BudgetError, UsageError
from memfit.running import engine
from memfit.running.session import chunking
from memfit.running.session.active import Running
from running.doors.outside import through_ctypes
from running.plainly import descend, same_bits
from running.pressure import BUDGET, evicted, is_resident, press, ramp

trace_rules = importing("torch._dynamo.trace_rules")
codecache = importing("torch._inductor.codecache")

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
    module = ModuleType("generated")
    module.__file__ = str(tmp_path / "generated.py")
    (tmp_path / "generated.py").write_text(
        "cpp_fused_add_0 = async_compile.cpp_pybinding(['float*', 'const int64_t'], r'''...''')\n"
        "cpp_fused_copy_1 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''...''')\n"
        "async_compile.wait(globals())\n"
    )
    module.cpp_fused_add_0 = add_one_unseen
    module.cpp_fused_copy_1 = add_one_unseen
    monkeypatch.setattr(codecache.PyCodeCache, "modules", [module])
    return module


def test_a_tensor_that_a_kernel_reads_is_dropped_and_one_that_it_writes_to_is_copied_out(wrapper):
    wrapper.cpp_fused_copy_1 = lambda source, target: None
    with memfit.session(BUDGET, "ram") as session:
        source, target = evicted(), evicted()
        before = session.stats
        wrapper.cpp_fused_copy_1(source, target)
        press()
        assert not is_resident(source) and not is_resident(target)
        assert session.stats.drops == before.drops + 1
        assert session.stats.bytes_out >= before.bytes_out + target.nbytes
        assert session.stats.unseen_writes == 0


def test_a_kernel_is_an_op_with_its_own_name_and_arguments(wrapper):
    wrapper.cpp_fused_add_0 = lambda *arguments: arguments
    with memfit.session(BUDGET, "ram") as session:
        tensor = evicted()
        before = session.stats.ops
        assert wrapper.cpp_fused_add_0(tensor, 3) == (tensor, 3)
        assert session.stats.ops == before + 1
        with pytest.raises(TypeError, match="unexpected keyword"):
            wrapper.cpp_fused_add_0(tensor, by=3)


UNKNOWN = {
    "a kind of kernel": "cpp_fused_add_0 = async_compile.halide(meta, 'x')\n",
    "arguments": "cpp_fused_add_0 = async_compile.cpp_pybinding(types, 'x')\n",
    "a kernel in a list": "kernels = [async_compile.cpp_pybinding(['float*'], 'x')]\n",
    "a kernel that is not there": "cpp_fused_neg_3 = async_compile.cpp_pybinding(['float*'], 'x')\n",
}


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
def test_a_kernel_of_an_unknown_form_is_an_error_and_not_missed(wrapper, source):
    Path(wrapper.__file__).write_text(source)
    with pytest.raises(UsageError, match="has a form that memfit does not know"), memfit.session(BUDGET, "ram"):
        pass
    assert wrapper.cpp_fused_add_0 is add_one_unseen


def test_a_wrapper_that_the_cache_has_forgotten_is_known_still(wrapper, monkeypatch):
    monkeypatch.setattr(codecache.PyCodeCache, "modules", [])
    monkeypatch.setitem(sys.modules, "torch._inductor.runtime.compile_tasks.forgotten", wrapper)
    with memfit.session(BUDGET, "ram"):
        assert wrapper.cpp_fused_add_0 is not add_one_unseen


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
    with memfit.session(BUDGET, "ram", map="never"):
        tensors = [evicted() for _ in range(5)]
        with pytest.raises(BudgetError, match="inductor::cpp_fused_add_0") as caught:
            wrapper.cpp_fused_add_0(*tensors)
        assert caught.value.required_bytes == sum(tensor.nbytes for tensor in tensors) > BUDGET
        press()
        assert not any(is_resident(tensor) for tensor in tensors[:4])


@pytest.mark.copied("what there is no room for")
def test_a_kernel_that_needs_more_than_the_budget_runs_on_mapped_storages(wrapper):
    with memfit.session(BUDGET, "ram") as session:
        tensors = [evicted() for _ in range(5)]
        wrapper.cpp_fused_add_0(*tensors)
        assert session.stats.mapped_ops == 1
        assert all(torch.equal(tensor, ramp() + 1) for tensor in tensors)


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


def test_list_ops_are_compiled_as_they_are_without_a_session():
    def run() -> list[int]:
        """Return how many tensors each list op of a compiled function has."""
        torch._dynamo.reset()
        lengths = []

        def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
            lengths.extend(len(node.args[0]) for node in graph.graph.nodes if node.target is torch._foreach_neg)
            return graph

        torch.compile(lambda *tensors: torch._foreach_neg(tensors), backend=backend)(*[torch.ones(3)] * 4)
        return lengths

    with chunking.installed(engine.load(), 1):
        assert run() == [4]
    assert run() == [4]


def test_the_compiler_remembers_nothing_of_a_session_that_is_over():
    """The map is made once in a process."""
    trace_rules.get_torch_obj_rule_map.cache_clear()
    with chunking.installed(engine.load(), 1):
        within = set(trace_rules.get_torch_obj_rule_map())
    trace_rules.get_torch_obj_rule_map.cache_clear()
    assert within == set(trace_rules.get_torch_obj_rule_map())


def test_what_was_made_before_a_session_is_compiled_within_as_it_would_be_without():
    """As one graph, though a session looks at every module's calls, and nothing is compiled again after it."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph

    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    of_module = torch.compile(net, backend=backend, fullgraph=True)
    of_function = torch.compile(lambda value: net(value), backend=backend, fullgraph=True)
    with memfit.session(None):
        for function in (of_module, of_function, of_module):
            function(torch.ones(2, 8))
    for function in (of_module, of_function):
        function(torch.ones(2, 8))
    assert len(graphs) == 2


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
