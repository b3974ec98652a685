"""A session changes where bytes are and nothing else: results, and what is left behind, are the plain run's."""

from __future__ import annotations

import gc
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.errors import InputError, UsageError
from memfit.planning.lifetimes import peak_live
from memfit.running import engine
from running.helpers_training import (
    PROGRAMS,
    STEPS,
    Log,
    Program,
    accumulation,
    batches,
    cnn,
    convnet,
    gan,
    known,
    mlp,
    others_hidden,
    run_in_session,
    run_inside,
    run_plainly,
    transformer,
)

pytestmark = pytest.mark.timeout(120)

TIERS = ("ram", "disk")


@pytest.fixture(autouse=True)
def on_its_own() -> Iterator[None]:
    with others_hidden():
        yield


def stats_now() -> dict[str, int]:
    return engine.load().stats()


def is_ordinary(tensor: Tensor) -> bool:
    return engine.load().block_id(tensor) == -1


def test_a_program_run_twice_plainly_computes_the_same():
    """What the comparisons below stand on."""
    for program in PROGRAMS.values():
        assert run_plainly(program).rows == known(program).rows


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["bytes", "percent"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_loss_gradient_weight_and_state_is_the_plain_runs(name, kind, tier):
    plain = known(PROGRAMS[name])
    log, session = run_in_session(PROGRAMS[name], plain.budget(kind), tier)
    assert log.rows == plain.rows
    assert session.stats.bytes_out > 0 and session.stats.bytes_in > 0  # it was not too easy
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes


@pytest.mark.unstressed("what moves")
def test_a_session_without_a_budget_moves_nothing_and_records():
    log, session = run_in_session(cnn, None, "disk")
    assert log.rows == known(cnn).rows
    assert session.stats.budget_bytes == 0
    assert session.stats.bytes_out == session.stats.bytes_in == session.stats.evictions == 0
    assert session.stats.tier_footprint_bytes == 0
    assert session.trace.ops and session.recorded is session.trace


# --- the budget is never exceeded


class Sampler:
    """Asks the engine for its statistics around every module's forward and backward."""

    def __init__(self) -> None:
        self.samples: list[dict[str, int]] = []

    def watch(self, model: nn.Module) -> None:
        for module in model.modules():
            module.register_forward_pre_hook(lambda *_: self.sample())
            module.register_forward_hook(lambda *_: self.sample())
        for parameter in model.parameters():
            parameter.register_hook(lambda _: self.sample())
            parameter.register_post_accumulate_grad_hook(lambda _: self.sample())

    def sample(self) -> None:
        self.samples.append(stats_now())


def sampled_training(sampler: Sampler) -> None:
    torch.manual_seed(0)
    model = convnet()
    optimizer = torch.optim.Adam(model.parameters())
    sampler.watch(model)
    for x in batches(STEPS, 8, 3, 16, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(10, (8,))).backward()
        sampler.sample()
        optimizer.step()
        sampler.sample()


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["bytes", "percent"])
def test_the_arena_is_inside_the_budget_at_every_hook(kind, tier):
    sampler = Sampler()
    with memfit.session(known(cnn).budget(kind), tier):
        sampled_training(sampler)
    limited = [s for s in sampler.samples if s["budget_bytes"]]
    assert len(limited) > 30
    for s in limited:
        assert s["footprint_bytes"] <= s["peak_footprint_bytes"] <= s["budget_bytes"] - s["stray_bytes"]
        assert s["resident_bytes"] <= s["footprint_bytes"]
        assert s["peak_resident_bytes"] <= s["peak_footprint_bytes"]


class EveryOp(TorchDispatchMode):
    """Samples after every op below autograd, those of the backward pass and the optimizer too."""

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self._sampler = sampler

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self._sampler.sample()
        return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_arena_is_inside_the_budget_after_every_op(name):
    sampler = Sampler()
    budget = known(PROGRAMS[name]).tight_bytes
    with memfit.session(budget, "ram") as session, EveryOp(sampler):
        log = run_inside(session, PROGRAMS[name])
    assert log.rows == known(PROGRAMS[name]).rows
    assert len(sampler.samples) > 200
    assert max(s["footprint_bytes"] for s in sampler.samples) <= session.stats.peak_footprint_bytes <= budget
    assert max(s["resident_bytes"] for s in sampler.samples) <= session.stats.peak_resident_bytes <= budget


@pytest.mark.parametrize("kind", ["bytes", "percent"])
def test_statistics_agree_with_each_other_at_every_hook(kind):
    sampler = Sampler()
    with memfit.session(known(cnn).budget(kind), "ram"):
        sampled_training(sampler)
    for s in (s for s in sampler.samples if s["budget_bytes"]):
        assert s["largest_free_bytes"] <= s["free_bytes"]
        assert s["resident_bytes"] + s["free_bytes"] <= s["budget_bytes"]
        assert s["live_bytes"] <= s["resident_bytes"] + s["tier_used_bytes"]
        assert s["live_bytes"] <= s["peak_live_bytes"]
        assert s["tier_used_bytes"] <= s["tier_footprint_bytes"]
        assert s["drops"] <= s["evictions"]
    growing = ("ops", "allocations", "evictions", "drops", "bytes_out", "bytes_in", "relocations", "iterations")
    for field in growing:
        values = [s[field] for s in sampler.samples]
        assert values == sorted(values), field


def test_the_engine_counts_the_live_bytes_of_the_tensors():
    with memfit.session(None, "ram") as session:
        base = session.stats
        kept = [torch.empty(size, dtype=torch.uint8) for size in (1, 63, 64, 65, 100_000)]
        now = session.stats
        assert now.live_bytes - base.live_bytes == sum(t.nbytes for t in kept)
        assert now.resident_bytes - base.resident_bytes == 64 * 3 + 128 + 100_032
        assert now.allocations - base.allocations == 5
        del kept
        assert session.stats.live_bytes == base.live_bytes
        assert session.stats.peak_live_bytes >= now.live_bytes


def test_statistics_after_the_session_are_those_at_its_end():
    with memfit.session("200KiB", "ram") as session:
        kept = torch.zeros(1000)
        kept.add_(1)
        inside = session.stats
    assert session.stats == inside
    assert 0 <= session.stats.fragmentation <= 1


# --- a share of the peak


@pytest.mark.parametrize("budget", ["60%", "75%", "90%"])
def test_a_share_holds_from_the_end_of_the_first_whole_iteration(budget):
    budgets = []

    def watched(log: Log) -> None:
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        for x in batches(STEPS, 32, 64):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            budgets.append(stats_now()["budget_bytes"])

    _, session = run_in_session(watched, budget, "ram")
    share = math.floor(int(budget[:-1]) * peak_live(session.trace, aligned=True)[0] / 100)
    assert budgets == [0, share, share, share]
    assert session.stats.peak_footprint_bytes <= share


def test_a_share_of_100_percent_moves_next_to_nothing():
    log, session = run_in_session(transformer, "100%", "ram")
    assert log.rows == known(transformer).rows
    assert session.stats.budget_bytes == known(transformer).peak_bytes


def test_a_share_never_holds_when_no_iteration_is_whole():
    with memfit.session("10%", "ram") as session:
        torch.ones(1000).add_(1)
    assert session.stats.budget_bytes == 0
    assert session.recorded is None
    with pytest.raises(UsageError, match="no whole iteration"):
        _ = session.trace


# --- adoption: tensors made before the session


def pretrained(width: int = 64) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = mlp(width)
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    torch.manual_seed(7)
    losses = []
    for x in batches(STEPS, 32, 64):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*model.parameters(), *gradients, *states]


def adopted_by_an_empty_session() -> int:
    gc.collect()
    with memfit.session(None, "ram") as session:
        return session.stats.adopted_bytes


def test_a_model_made_before_the_session_moves_into_it():
    before = adopted_by_an_empty_session()
    model, optimizer = pretrained()
    train(model, optimizer)
    expected = sum(t.nbytes for t in tensors_of(model, optimizer))
    with memfit.session(None, "ram") as session:
        assert session.stats.adopted_bytes == before + expected
        assert not any(is_ordinary(t) for t in tensors_of(model, optimizer))


@pytest.mark.parametrize("tier", TIERS)
def test_a_model_larger_than_the_budget_is_adopted_and_trains_as_plainly(tier):
    plain = train(*pretrained())
    model, optimizer = pretrained()
    with memfit.session(100_000, tier) as session:
        assert session.stats.adopted_bytes >= sum(p.nbytes for p in model.parameters())
        losses = train(model, optimizer)
    assert losses == plain
    assert session.stats.peak_footprint_bytes <= 100_000
    assert session.stats.bytes_out > 0


def test_a_view_made_before_the_session_still_shares_its_storage():
    base = torch.arange(1000.0)
    view = base.view(10, 100)[3]
    with memfit.session(20_000, "ram"):
        for _ in range(3):
            torch.zeros(4000).add_(1)  # pushes the others out
        view.add_(1000)
    assert base[300].item() == 1300 and view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
    assert torch.equal(base[300:400], torch.arange(1300.0, 1400.0))


def assert_usable_as_before(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The tensors lie in ordinary memory, and training goes on as in a run that never met a session."""
    assert all(is_ordinary(t) for t in tensors_of(model, optimizer))
    assert not engine.load().active()
    plain_model, plain_optimizer = pretrained()
    train(plain_model, plain_optimizer)
    assert train(model, optimizer) == train(plain_model, plain_optimizer)
    assert all(p.detach().numpy().shape == p.shape for p in model.parameters())


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("budget", [None, 100_000, "60%"])
def test_after_the_session_everything_is_in_ordinary_memory_and_trains_on(budget, tier):
    model, optimizer = pretrained()
    with memfit.session(budget, tier):
        train(model, optimizer)
    assert_usable_as_before(model, optimizer)


@pytest.mark.parametrize("error", [ValueError("own"), KeyboardInterrupt(), SystemExit(3), RuntimeError("own")])
@pytest.mark.parametrize("budget", [100_000, "60%"])
def test_after_an_exception_everything_is_in_ordinary_memory_and_trains_on(budget, error):
    model, optimizer = pretrained()
    with pytest.raises(type(error)) as caught, memfit.session(budget, "disk"):
        train(model, optimizer)
        raise error
    assert caught.value is error
    assert_usable_as_before(model, optimizer)


def test_an_exception_in_mid_iteration_keeps_the_graph_alive_and_right():
    model, _ = pretrained()
    x = torch.ones(32, 64)
    model(x).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with pytest.raises(ValueError), memfit.session(60_000, "disk"):
        loss = model(x).square().mean()
        raise ValueError
    loss.backward()  # activations that were swapped out are back
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))


def test_tensors_made_inside_the_session_live_on_after_it():
    with memfit.session(60_000, "disk"):
        made = [torch.full((1000,), float(i)) for i in range(40)]
        total = sum(t.sum() for t in made)
    assert all(is_ordinary(t) for t in made)
    assert all(torch.equal(t, torch.full((1000,), float(i))) for i, t in enumerate(made))
    assert total.item() == sum(range(40)) * 1000
    made[0].numpy()[:] = 5
    assert made[0].sum().item() == 5000


def test_a_tensor_that_numpy_sees_keeps_its_address_through_and_after_the_session():
    with memfit.session(60_000, "ram"):
        tensor = torch.zeros(1000)
        array = tensor.numpy()
        for _ in range(5):
            torch.zeros(10_000).add_(1)
        array[3] = 7
        assert tensor[3].item() == 7
    array[4] = 8
    assert tensor[4].item() == 8
    tensor.add_(1)
    assert array[3] == 8
    assert array.ctypes.data == tensor.data_ptr()


# --- one session at a time, many after each other


def test_a_session_inside_a_session_is_refused_and_the_outer_one_goes_on():
    with memfit.session(known(accumulation).tight_bytes, "ram") as outer:
        with pytest.raises(UsageError, match="active already"), memfit.session(None):
            pytest.fail("entered")
        log = run_inside(outer, accumulation)
        assert outer.stats.budget_bytes == known(accumulation).tight_bytes
    assert log.rows == known(accumulation).rows
    assert not engine.load().active()


def test_a_session_that_has_ended_cannot_begin_again_and_keeps_its_figures():
    session = memfit.session(known(transformer).budget("percent"), "ram")
    with session:
        run_inside(session, transformer)
    first, signatures = session.stats, session.signatures
    with pytest.raises(UsageError, match="has ended"), session:
        pytest.fail("entered")
    assert not engine.load().active()
    assert (session.stats, session.signatures) == (first, signatures)


@pytest.mark.parametrize("budget", ["100TiB", 2**63 - 1])
def test_a_budget_far_beyond_the_machine_is_no_limit(budget):
    try:
        with memfit.session(budget, "ram"):
            assert torch.ones(10).sum().item() == 10
    except InputError as error:
        assert error.remedy


def test_a_malformed_budget_or_tier_is_refused_before_anything_starts():
    for budget, tier in (("60", "nonsense"), ("abc", "ram"), ("0%", "ram"), (-5, "ram"), ("1GiB", "disk:/nowhere")):
        with pytest.raises(InputError):
            memfit.session(budget, tier)
    assert not engine.load().active()


def optimizer_hooks() -> int:
    module = sys.modules[torch.optim.Optimizer.__module__]
    return len(module._global_optimizer_pre_hooks) + len(module._global_optimizer_post_hooks)


def test_outside_of_a_session_torch_is_as_it_was():
    patched = (torch.Tensor.numpy, torch.Tensor.data_ptr, torch._foreach_add_, torch.UntypedStorage.tolist)
    own = ["numpy" in vars(torch.Tensor), "tolist" in vars(torch.Tensor)]
    hooks = optimizer_hooks()
    run_in_session(accumulation, None, "ram")
    assert patched == (torch.Tensor.numpy, torch.Tensor.data_ptr, torch._foreach_add_, torch.UntypedStorage.tolist)
    assert own == ["numpy" in vars(torch.Tensor), "tolist" in vars(torch.Tensor)]
    assert hooks == optimizer_hooks()


def memory_bytes() -> tuple[int, int]:
    """(virtual, resident) size of this process."""
    pages = Path("/proc/self/statm").read_text().split()
    return int(pages[0]) * 4096, int(pages[1]) * 4096


@pytest.mark.parametrize("tier", TIERS)
def test_fifty_sessions_in_a_row_leave_nothing_behind(tier):
    def one() -> None:
        with memfit.session(2_000_000, tier):
            kept = [torch.ones(100_000) for _ in range(8)]
            for tensor in kept:
                tensor.mul_(2)

    for _ in range(10):
        one()
    files = len(os.listdir("/proc/self/fd"))
    virtual, resident = memory_bytes()
    for _ in range(50):
        one()
    assert len(os.listdir("/proc/self/fd")) == files
    more_virtual, more_resident = (now - then for now, then in zip(memory_bytes(), (virtual, resident), strict=True))
    assert more_resident < 5_000_000  # one session's arena and tier are 3.6 MB
    assert more_virtual < 50_000_000


# --- signatures: one for each kind of iteration


def test_equal_iterations_have_equal_signatures_and_the_first_differs():
    _, session = run_in_session(cnn, None, "ram")
    first, *rest = session.signatures
    assert len(session.signatures) == STEPS == session.stats.iterations
    assert len(set(rest[1:])) == 1
    assert first not in rest  # it builds the model and the optimizer's state


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_budget_does_not_change_signatures(name):
    program = PROGRAMS[name]
    unlimited = run_in_session(program, None, "ram")[1].signatures
    assert run_in_session(program, known(program).budget("bytes"), "disk")[1].signatures == unlimited


def epochs(log: Log) -> None:
    """Two epochs of three batches, the last one smaller, with an evaluation between them."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for epoch in range(3):
        for size in (32, 32, 32, 20):
            optimizer.zero_grad()
            model(torch.randn(size, 64)).square().mean().backward()
            optimizer.step()
        if epoch == 1:
            with torch.no_grad():
                model(torch.randn(32, 64))


def test_a_smaller_last_batch_and_an_evaluation_make_signatures_of_their_own():
    _, session = run_in_session(epochs, None, "ram")
    s = session.signatures
    assert len(s) == 12
    assert s[1] == s[2] == s[4] == s[5] == s[6] == s[9] == s[10]
    assert s[3] == s[7] == s[11]
    assert len({s[0], s[1], s[3], s[8]}) == 4


def accumulating(micro_batches: tuple[int, ...]) -> Program:
    def program(log: Log) -> None:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        for count in micro_batches:
            optimizer.zero_grad()
            for x in batches(count, 32, 64):
                model(x).square().mean().backward()
            optimizer.step()

    return program


def test_accumulation_over_more_batches_is_another_kind_of_iteration():
    s = run_in_session(accumulating((2, 2, 3, 2, 3)), None, "ram")[1].signatures
    assert len(s) == 5  # one for each optimizer step, not for each backward pass
    assert s[1] == s[3] and s[2] == s[4] and s[1] != s[2]


def test_an_iteration_of_a_gan_holds_a_step_of_each_optimizer():
    _, session = run_in_session(gan, None, "ram")
    optimizer_ops = [op for op in session.trace.ops if op.name == "aten::addcdiv_"]
    foreach_ops = [op for op in session.trace.ops if op.name.startswith("aten::_foreach_addcdiv_")]
    parameters = 6 + 4
    assert len(optimizer_ops) == parameters or len(foreach_ops) == 2
    counts = Counter(session.signatures)
    assert counts.most_common(1)[0][1] >= STEPS - 2


def test_the_iterations_of_a_gan_take_turns_even_under_a_share():
    log, session = run_in_session(gan, known(gan).budget("percent"), "ram")
    assert log.rows == known(gan).rows
    assert len(set(session.signatures[2:])) == 1
