"""TorchScript modules are written with their bytes, wherever these are."""

from __future__ import annotations

import io

import pytest
import torch

import memfit
from running.pressure import BUDGET, evicted, is_resident, press

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]


class Model(torch.nn.Module):
    """Has tensors in every place that TorchScript knows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)
        self.register_buffer("buffer", torch.full((64, 64), 2.0), persistent=False)
        self.attribute = torch.full((64, 64), 3.0)
        self.listed = [torch.full((64, 64), 4.0)]
        self.named = {"a": torch.full((64, 64), 5.0)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        extra = self.buffer.sum() + self.attribute.sum() + self.listed[0].sum() + self.named["a"].sum()
        return self.layer(x) + extra


def scripted(kind: str) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = Model().eval()
    if kind == "trace":
        return torch.jit.trace(model, torch.ones(2, 256), check_trace=False)
    return torch.jit.freeze(torch.jit.script(model)) if kind == "frozen" else torch.jit.script(model)


def written(module: torch.jit.ScriptModule) -> io.BytesIO:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return file


@pytest.mark.copied("where storages are")
@pytest.mark.parametrize("kind", ["script", "trace", "frozen"])
def test_a_module_that_is_away_is_saved_and_gives_the_same_results(kind, tmp_path):
    x = torch.ones(2, 256)
    expected = scripted(kind)(x)
    with memfit.session(BUDGET, "ram"):
        module = scripted(kind)
        press()
        loaded = torch.jit.load(written(module))
        press()
        module.save(tmp_path / "file")
        assert torch.equal(loaded(x), expected) and torch.equal(module(x), expected)
        press()
        assert not any(is_resident(p) for p in module.parameters() if p.dim() == 2)
    assert torch.equal(torch.jit.load(tmp_path / "file")(x), expected)


def test_a_traced_function_with_a_constant_is_saved():
    with memfit.session(BUDGET, "ram"):
        constant = torch.full((64, 64), 2.0)
        function = torch.jit.trace(lambda x: x + constant, torch.ones(64, 64), check_trace=False)
        evicted(constant)
        assert torch.jit.load(io.BytesIO(function.save_to_buffer()))(torch.ones(64, 64))[3, 3] == 3


def test_a_module_that_does_not_fit_is_refused_by_the_budget():
    with memfit.session(BUDGET, "ram"):
        module = torch.jit.script(torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8))))
        press()
        with pytest.raises(memfit.BudgetError):
            written(module)
        assert module(torch.ones(1, 256)).shape == (1, 256)  # and all goes on
