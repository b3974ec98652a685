"""Scripted and exported models, and transforms of functions, train in a budget to the bits of a plain run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

from running.plainly import as_plainly, descend
from running.planned.training import wait_for_plans

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

WIDTH, ROWS, STEPS = 128, 256, 12
Losses = tuple[list[float], list[Tensor]]


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()) for _ in range(4)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 8))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(ROWS, WIDTH), torch.randint(8, (ROWS,))


def train(called: Callable[[Tensor], Tensor], parameters: list[Tensor]) -> Losses:
    x, y = data()
    optimizer = torch.optim.AdamW(parameters)
    losses = [loss.item() for loss in descend(optimizer, lambda: nn.functional.cross_entropy(called(x), y), STEPS)]
    return losses, [parameter.detach() for parameter in parameters]


def scripted() -> Losses:
    made = torch.jit.script(model())
    return train(made, list(made.parameters()))


def traced() -> Losses:
    made = torch.jit.trace(model(), data()[0], check_trace=False)
    return train(made, list(made.parameters()))


def exported() -> Losses:
    made = torch.export.export(model(), (data()[0],)).module()
    return train(made, list(made.parameters()))


def exported_and_decomposed() -> Losses:
    program = torch.export.export(model(), (data()[0],)).run_decompositions()
    made = program.module()
    return train(made, list(made.parameters()))


def gradients_of_each_sample() -> Losses:
    """Clip each sample's gradient, as differentially private training does."""
    made = model()
    weights = dict(made.named_parameters())
    x, y = (part[:24] for part in data())

    def loss_of(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(made, values, (row[None],)), label[None])

    optimizer = torch.optim.AdamW(weights.values())
    norms = []
    for _ in range(STEPS):
        each = vmap(grad(loss_of), (None, 0, 0))({n: w.detach() for n, w in weights.items()}, x, y)
        norm = torch.stack([g.flatten(1).square().sum(1) for g in each.values()]).sum(0).sqrt()
        scale = (1 / norm).clamp(max=1)
        for name, weight in weights.items():
            weight.grad = torch.einsum("n,n...->...", scale, each[name]) / len(x)
        optimizer.step()
        norms.append(norm.sum().item())
    return norms, [weight.detach() for weight in weights.values()]


def several_models_at_once() -> Losses:
    """Train an ensemble whose members' weights are stacked."""
    members = [model() for _ in range(3)]
    weights, buffers = torch.func.stack_module_state(members)
    base = members[0]
    x, y = data()

    def loss_of(values: dict[str, Tensor]) -> Tensor:
        logits = vmap(lambda w, b: functional_call(base, (w, b), (x,)))(values, buffers)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.repeat(len(members)))

    optimizer = torch.optim.SGD(weights.values(), lr=0.1)
    losses = [loss.item() for loss in descend(optimizer, lambda: loss_of(weights), STEPS)]
    return losses, [weight.detach() for weight in weights.values()]


def jacobians_and_hessians() -> Losses:
    """Train on the curvature of a small function of each weight."""
    torch.manual_seed(0)
    weight = torch.randn(48, requires_grad=True)
    mixed = torch.randn(48, 48)

    def energy(w: Tensor) -> Tensor:
        return (mixed @ w).tanh().pow(2).sum()

    def loss_of() -> Tensor:
        along = jvp(energy, (weight,), (torch.ones_like(weight),))[1]
        curved = hessian(energy)(weight).diagonal().square().mean()
        return curved + along + jacfwd(energy)(weight).square().mean() + jacrev(jacrev(energy))(weight).trace()

    losses = [loss.item() for loss in descend(torch.optim.AdamW([weight]), loss_of, STEPS)]
    return losses, [weight.detach()]


@pytest.fixture
def patient(monkeypatch):
    """Training waits for its plan."""
    wait_for_plans(monkeypatch)


PROGRAMS = [
    scripted,
    traced,
    exported,
    exported_and_decomposed,
    gradients_of_each_sample,
    several_models_at_once,
    jacobians_and_hessians,
]


@pytest.mark.long
@pytest.mark.usefixtures("patient")
@pytest.mark.copied("whether storages left, and by which plan")
@pytest.mark.parametrize("share", [60, 40])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_bits_are_those_of_the_plain_run(program: Callable[[], Losses], share: int):
    unlimited = as_plainly(program, "100%", "ram").stats
    budget = unlimited.peak_live_bytes * share // 100
    limited = as_plainly(program, budget, "ram").stats
    assert limited.peak_footprint_bytes <= budget
    assert limited.bytes_out > 0 or limited.recomputations > 0
    assert limited.plans > 0 and limited.planned_allocations > 0
