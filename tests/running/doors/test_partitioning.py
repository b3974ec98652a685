"""What compiled passes keep: fewer bytes where they are cheap to make again, and the bits of the same graphs."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import memfit
from libraries import importing
from memfit.errors import InputError, UsageError
from memfit.planning.partition import Speeds
from memfit.running.doors import compiling, partitioning

config = importing("torch._functorch.config")
partitioners = importing("torch._functorch.partitioners")
inductor = importing("torch._inductor.config")

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]
NEVER, ALWAYS = Speeds(1.0, 1.0, 1e18), Speeds(1e18, 1e18, 1.0)
"""Machines on which nothing is worth making again, and all."""
WIDTH, ROWS = 64, 256


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def model() -> nn.Module:
    torch.manual_seed(7)
    layers = (layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH)))
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH))


def kept_bytes(speeds: Speeds | None) -> int:
    """Return the bytes that a compiled pass keeps of what it has made."""
    torch.compiler.reset()
    network = model()
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    with nullcontext() if speeds is None else partitioning.recomputed(speeds):
        out = torch.compile(network, backend="aot_eager_decomp_partition")(torch.randn(ROWS, WIDTH))
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in out.grad_fn.saved_tensors}
    return sum(size for address, size in kept.items() if address not in own)


@pytest.mark.long
def test_what_is_cheap_to_make_again_is_not_kept():
    usual, little, much = kept_bytes(None), kept_bytes(ALWAYS), kept_bytes(NEVER)
    activation = 4 * ROWS * WIDTH
    assert little < much - 0.9 * activation  # every other product
    assert much < usual - 2 * activation  # what is elementwise


def gradients(speeds: Speeds | None, backend: str) -> list[Tensor]:
    torch.compiler.reset()
    network = model()
    with nullcontext() if speeds is None else partitioning.recomputed(speeds):
        run = torch.compile(network, backend=backend)
        torch.manual_seed(11)
        run(torch.randn(ROWS, WIDTH)).square().sum().backward()
    return [parameter.grad for parameter in network.parameters()]


@pytest.mark.long
@pytest.mark.parametrize("speeds", [ALWAYS, NEVER])
def test_random_numbers_of_the_backward_pass_are_those_of_the_forward_pass(speeds):
    plain, again = (gradients(each, "aot_eager_decomp_partition") for each in (None, speeds))
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.long
@pytest.mark.parametrize("generator", [pytest.param("inductor's", marks=pytest.mark.slow), "torch's"])
def test_inductor_s_gradients_are_those_of_torch_s_partition_but_for_roundings(generator):
    with inductor.patch(fallback_random=generator == "torch's"):
        plain, again = (gradients(each, "inductor") for each in (None, ALWAYS))
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4 * float(one.abs().max()))


def trained(steps: int = 6) -> list[Tensor]:
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    run = torch.compile(network)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.mse_loss(run(torch.randn(ROWS, WIDTH)), torch.randn(ROWS, WIDTH)).backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in network.parameters()]


@pytest.mark.long
def test_a_session_recomputes_to_the_bits_of_the_same_graphs_without_a_budget(monkeypatch):
    monkeypatch.setattr("memfit.running.session.settings.speeds_to", lambda tier, device: ALWAYS)
    with partitioning.recomputed(ALWAYS), compiling.kernels_cut():
        plain = trained()
    torch.compiler.reset()
    with memfit.session("70%", tier="ram", partition="recompute") as session:
        limited = trained()
    usual = session.stats.peak_live_bytes
    assert session.stats.bytes_out > 0
    assert all(torch.equal(one, other) for one, other in zip(plain, limited, strict=True))
    torch.compiler.reset()
    with memfit.session("70%", tier="ram") as session:
        trained()
    assert usual < session.stats.peak_live_bytes - 4 * ROWS * WIDTH


def test_torch_s_settings_are_as_before_when_the_context_ends():
    before = config.activation_memory_budget, config.activation_memory_budget_solver
    with partitioning.recomputed(ALWAYS):
        assert isinstance(config.activation_memory_budget_solver, partitioners.CustomKnapsackSolver)
        assert config.activation_memory_budget < 1e-6
    assert (config.activation_memory_budget, config.activation_memory_budget_solver) == before


def test_caches_of_compiled_graphs_know_the_speeds():
    keys = set()
    for speeds in (ALWAYS, NEVER, ALWAYS):
        with partitioning.recomputed(speeds):
            keys.add(config.activation_memory_budget_solver.uuid())
    assert len(keys) == 2


def test_a_torch_that_takes_no_solver_is_refused_in_a_line(monkeypatch):
    monkeypatch.delattr("torch._functorch.partitioners.CustomKnapsackSolver")
    with pytest.raises(UsageError, match="does not let memfit choose"), partitioning.recomputed(ALWAYS):
        pass


def test_a_partition_that_is_none_is_refused():
    with pytest.raises(InputError, match="'half' does not say what compiled passes keep"):
        memfit.session("50%", partition="half")
