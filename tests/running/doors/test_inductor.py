"""What inductor really makes, in a session: the same bits as without one, and a line for what does not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import memfit
from libraries import importing
from memfit.errors import UsageError
from running.plainly import as_plainly, descend, same_bits
from running.pressure import BUDGET, COUNT, evicted, is_resident, press, ramp

dynamo = importing("torch._dynamo.utils")
inductor = importing("torch._inductor.config")
output_code = importing("torch._inductor.output_code")
codecache = importing("torch._inductor.codecache")
cpp = importing("torch._inductor.codegen.cpp")

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


def rows() -> Tensor:
    return ramp().reshape(256, 256) / COUNT


def two_kernels(x: Tensor, total: Tensor) -> Tensor:
    """Compute what takes a kernel, a product, and a kernel that writes to what it is given."""
    y = (x.sin() + 1) @ x
    total.mul_(0.5).add_(y, alpha=0.5)
    return y.relu() - total


@pytest.fixture(scope="module")
def compiled() -> Callable[..., Tensor]:
    """`two_kernels`, compiled before any session; a later run finds it in inductor's cache."""
    function = torch.compile(two_kernels, fullgraph=True)
    function(rows(), rows())
    return function


@pytest.mark.long
def test_a_function_from_before_the_session_finds_its_tensors_and_its_writes_are_kept(compiled):
    x, total = rows(), rows()
    plain = [compiled(x, total).clone(), compiled(x, total).clone(), total]
    with memfit.session(BUDGET, "ram") as session:
        x, total = evicted(rows()), evicted(rows())
        found = []
        for _ in range(2):
            total.sum()  # comes in, and the copy outside stays good
            found.append(compiled(x, total).clone())
            press()
            assert not is_resident(x) and not is_resident(total)
        assert same_bits([*found, total], plain)
        assert session.stats.unseen_writes == 0, "a kernel's own signature says that it writes"
        before = session.stats.ops
        compiled(x, total)
        assert session.stats.ops == before + 3, "two kernels and a product"


@pytest.mark.slow
def test_what_is_compiled_in_a_session_comes_from_the_cache_the_next_time():
    def run() -> list[Tensor]:
        torch.compiler.reset()
        dynamo.counters.clear()
        x, total = rows(), rows()
        return [torch.compile(two_kernels)(x, total), total]

    plain = run()
    for hits in (None, 1):
        with memfit.session(BUDGET, "ram"):
            assert same_bits(run(), plain)
            press()
        assert hits is None or dynamo.counters["inductor"]["fxgraph_cache_hit"] == hits


def average_updates() -> list[Tensor]:
    """What is updated in place by a kernel alone, between reads (that leave a good copy outside)."""

    @torch.compile
    def update(average: Tensor, x: Tensor) -> None:
        average.mul_(0.9).add_(x, alpha=0.1)

    average, x = torch.zeros(COUNT), ramp()
    for _ in range(4):
        press()
        average.sum(), x.sum()
        update(average, x)
    press()
    return [average]


def shapes_that_change() -> list[Tensor]:
    net = torch.compile(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)), dynamic=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    sizes = iter([200, 300, 400, 300, 200])
    found = []
    for loss in descend(optimizer, lambda: net(torch.ones(next(sizes), 64)).square().mean(), 5):
        found.append(loss)
        press()
    return [*found, *(each.detach() for each in net.parameters())]


def a_break_at_a_number() -> list[Tensor]:
    @torch.compile
    def step(x: Tensor) -> Tensor:
        y = x.sin() + 1
        return (y * 2 if float(y.mean()) > 0 else -y).cos()

    found = []
    for _ in range(3):
        x = rows()
        press()
        found.append(step(x))
    return found


def without_overhead() -> list[Tensor]:
    step = torch.compile(lambda x: (x.sin() + 1) @ x, mode="reduce-overhead")
    return [step(rows()), step(rows() + 1)]


def attention_by_a_template() -> list[Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda _, __, q, k: q >= k, None, None, 256, 256, device="cpu")
    attend = torch.compile(flex_attention)
    found = []
    for _ in range(2):
        parts = [torch.randn(1, 4, 256, 32) for _ in range(3)]
        press()
        found.append(attend(*parts, block_mask=mask))
    return found


PROGRAMS = (average_updates, shapes_that_change, a_break_at_a_number, without_overhead, attention_by_a_template)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_gives_the_same_bits(program):
    def run() -> list[Tensor]:
        torch.compiler.reset()
        torch.manual_seed(0)
        return program()

    run()  # compiled without a session, too
    session = as_plainly(run, BUDGET, "ram")
    assert session.stats.bytes_out > 0 and session.stats.unseen_writes == 0


@pytest.mark.slow
def test_a_compiled_optimizer_is_cut_into_kernels_that_fit():
    """Its 16 parameters, gradients and moments are four times the budget."""

    def run() -> list[Tensor]:
        torch.compiler.reset()
        torch.manual_seed(0)
        weights = [torch.randn(128, 128, requires_grad=True) for _ in range(16)]
        optimizer = torch.optim.AdamW(weights)
        step = torch.compile(optimizer.step)
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.detach().cos()
            step()
        return [weight.detach() for weight in weights]

    plain = run()
    with memfit.session(BUDGET, "ram", map="never") as session:
        assert same_bits(run(), plain)
        assert session.stats.bytes_in > 0
    source = Path(str(codecache.PyCodeCache.modules[-1].__file__)).read_text()
    largest = max(map(len, map(ast.literal_eval, re.findall(r"cpp_pybinding\((\[.*?\])", source))))
    assert largest == 8, "one parameter's: of itself, its gradient, two moments and steps, and what is written"


def test_settings_are_as_before_after_the_session():
    def graphs() -> object:
        """Return what makes CUDA graphs, or does not."""
        return getattr(inductor, "cudagraph_policy", output_code.cudagraph_post_compile)

    def settings() -> list[object]:
        return [inductor.memory_planning, graphs(), torch.compiler.config.cache_key_tag,
                cpp.CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM]  # fmt: skip

    before = settings()
    with memfit.session(None, "ram"):
        within = settings()
        assert within[0] is False and within[1] != before[1]
        assert within[2] != before[2] and within[3] < before[3]
    assert settings() == before


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "compiled within"])
def test_a_wrapper_in_cpp_is_refused_when_it_is_called(before):
    torch.compiler.reset()
    step = torch.compile(lambda x: (x.sin() + 1).sum(), options={"cpp_wrapper": True})
    if before:
        plain = step(ramp())
    with memfit.session(None, "ram"), pytest.raises(UsageError, match="cpp_wrapper=True does not run") as caught:
        step(ramp())
    assert str(caught.value).count("\n") == 2, "what, why and what to do"
    found = step(ramp())
    assert not before or torch.equal(found, plain)


@pytest.mark.slow
def test_a_package_is_refused_when_it_is_called(tmp_path):
    exported = torch.export.export(nn.Linear(8, 8), (torch.ones(2, 8),))
    path = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
    package = torch._inductor.aoti_load_package(path)
    plain = package(torch.ones(2, 8))
    with memfit.session(None, "ram"), pytest.raises(UsageError, match="AOTInductor compiled does not run") as caught:
        package(torch.ones(2, 8))
    assert str(caught.value).count("\n") == 2, "what, why and what to do"
    assert torch.equal(package(torch.ones(2, 8)), plain)
