"""Forward passes without gradients end iterations where nothing is trained; weights that are only read are paged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.ir import Category, Phase
from memfit.running.session.passes import Passes, has_optimizer, tensors_in
from running.plainly import same_bits, train_by_hand
from running.planned.training import plan_at_fixed_steps

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]

WIDTH, LAYERS, BATCH = 128, 12, 16
WEIGHTS = LAYERS * WIDTH * WIDTH * 4
QUARTER = WEIGHTS // 4


def chain(layers: int = LAYERS) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))).eval()


def inputs(count: int) -> list[Tensor]:
    return [torch.randn(BATCH, WIDTH) for _ in range(count)]


def infer(passes: int, model: nn.Module | None = None) -> list[Tensor]:
    torch.manual_seed(0)
    model = model or chain()
    with torch.no_grad():
        return [model(each).clone() for each in inputs(passes)]


def passes_of(work, *args) -> list[tuple[nn.Module, int]]:
    found: list[tuple[nn.Module, int]] = []
    passes = Passes(lambda module, outputs: found.append((module, len(outputs))))
    with passes.watched():
        work(*args)
    return found


def fail(*_):
    raise ValueError("own")


class Model(nn.Module):
    def __init__(self, result=lambda y: y) -> None:
        super().__init__()
        self.inner, self.result = nn.Linear(4, 4), result

    def forward(self, x: Tensor):
        return self.result(self.inner(x))


class Recursive(nn.Module):
    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        return self(x, depth - 1) + 1 if depth else x


def test_a_pass_is_the_outermost_call_of_a_module_whatever_it_calls_in_turn():
    model, recursive = Model(), Recursive()
    with torch.no_grad():
        assert passes_of(model, torch.ones(4)) == [(model, 1)]
        assert passes_of(recursive, torch.ones(4)) == [(recursive, 1)]


def test_a_module_that_calls_itself_has_ended_when_the_outer_call_has():
    found: list[float] = []
    with Passes(lambda _, outputs: found.append(outputs[0].item())).watched(), torch.no_grad():
        Recursive()(torch.zeros(()))
    assert found == [2.0]


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_what_it_returned_is_passed_on(without):
    model = Model(lambda y: {"a": y, "rest": [y, (y, 3)]})
    with without():
        assert passes_of(model, torch.ones(4)) == [(model, 3)]


def test_a_call_that_computes_gradients_is_no_pass_and_one_of_frozen_weights_is():
    model = Model()
    assert passes_of(model, torch.ones(4)) == []
    model.requires_grad_(False)
    assert passes_of(model, torch.ones(4)) == [(model, 1)]


def test_a_call_that_fails_is_no_pass_and_the_next_one_is():
    failing, model = Model(fail), Model()

    def work() -> None:
        with pytest.raises(ValueError, match="own"):
            failing(torch.ones(4))
        model(torch.ones(4))

    with torch.no_grad():
        assert passes_of(work) == [(model, 1)]


@pytest.mark.filterwarnings("error")  # torch warns of hooks on all modules: these do no harm
def test_the_compiler_sees_nothing_of_it_and_passes_of_compiled_modules_are_seen():
    hooks = nn.modules.module._global_forward_hooks
    before = len(hooks)
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.append(len(hooks) - before)
        return graph

    compiled = torch.compile(nn.Linear(4, 4), backend=backend, fullgraph=True)

    def work() -> None:
        assert len(hooks) == before + 1
        compiled(torch.ones(4))
        assert len(hooks) == before + 1
        compiled(torch.ones(4))

    with torch.no_grad():
        assert passes_of(work) == [(compiled, 1)] * 2
        compiled(torch.ones(4))
    assert seen == [0], "it was compiled with hooks, or again because of them"
    assert len(hooks) == before and not nn.modules.module._global_forward_pre_hooks


def test_an_optimizer_is_found_for_as_long_as_it_lives():
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    assert has_optimizer()
    del optimizer


def test_tensors_are_found_in_what_models_return():
    assert len(list(tensors_in({"x": [torch.ones(1), None], "y": (torch.ones(1), "text")}))) == 2


def test_a_share_is_of_a_pass_and_holds_from_the_second():
    with memfit.session("40%", "ram") as session:
        infer(1)
        assert session.stats.budget_bytes == 0 and "forward pass" in session.why_no_limit
    with memfit.session("40%", "ram") as session:
        limited = infer(6)
        assert session.why_no_limit == "" and session.stats.iterations == 6 and session.forward_only
        assert WEIGHTS < session.peak_bytes < 1.1 * WEIGHTS
    assert same_bits(infer(6), limited)


def test_the_trace_has_parameters_activations_inputs_and_one_phase():
    with memfit.session(None, "ram") as session:
        infer(2)
    trace = session.trace
    sizes = {category: sum(s.size_bytes for s in trace.storages if s.category is category) for category in Category}
    assert sizes[Category.PARAMETER] == WEIGHTS and sizes[Category.ACTIVATION] > 0 and sizes[Category.INPUT] > 0
    assert sizes[Category.GRADIENT] == sizes[Category.OPTIMIZER_STATE] == 0
    assert {op.phase for op in trace.ops} == {Phase.FORWARD}


def test_the_step_of_an_optimizer_that_failed_in_an_earlier_session_is_over():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("own")

    weight = nn.Parameter(torch.ones(4))
    with memfit.session(None, "ram"):
        weight.sum().backward()
        with pytest.raises(KeyError, match="own"):
            Failing([weight]).step()
    with memfit.session(None, "ram") as session:
        infer(2)
    assert {op.phase for op in session.trace.ops} == {Phase.FORWARD}


def test_weights_four_times_the_budget_are_read_each_pass_written_once_and_paged_by_a_plan(monkeypatch):
    plan_at_fixed_steps(monkeypatch)
    plain, few, many = [output.tolist() for output in infer(30)], 20, 30
    torch.manual_seed(0)
    with memfit.session(QUARTER, "ram", moves="swap") as session, torch.no_grad():
        model, outputs, stats = chain(), [], {}
        for number in range(1, many + 1):
            outputs.append(model(torch.randn(BATCH, WIDTH)).tolist())
            stats[number] = session.stats
        assert session.planned_iterations > 5
    assert plain == outputs
    assert stats[many].bytes_out == stats[few].bytes_out < 1.2 * WEIGHTS, "what is only read is written once"
    least = WEIGHTS - QUARTER
    assert least <= (stats[many].bytes_in - stats[few].bytes_in) / (many - few) <= 1.2 * WEIGHTS
    assert stats[many].prefetches > stats[few].prefetches and session.stats.peak_footprint_bytes <= QUARTER


@pytest.mark.unmapped
def test_a_budget_below_one_layer_is_refused_with_the_least_that_would_do():
    infer(2)
    with pytest.raises(memfit.BudgetError) as caught, memfit.session("5%", "ram"):
        infer(3)
    layer = WIDTH * WIDTH * 4
    assert layer < caught.value.required_bytes < 2 * layer and caught.value.op == "aten::linear"


@pytest.mark.parametrize("order", ["ab", "abbb", "abbbc"])
def test_with_several_modules_the_one_that_comes_again_first_ends_iterations(order):
    models = {name: chain(2) for name in "abc"}
    with memfit.session(None, "ram") as session, torch.no_grad():
        for name in 4 * order:
            models[name](torch.ones(BATCH, WIDTH))
    assert session.stats.iterations == {"ab": 4, "abbb": 1 + 11, "abbbc": 1 + 11}[order]


def test_tied_weights_and_weights_of_before_the_session_are_one_storage_each():
    model = chain(4)
    model.append(nn.Linear(WIDTH, WIDTH, bias=False))
    model[-1].weight = model[0].weight
    plain = infer(12, model)
    with memfit.session("60%", "ram") as session:
        limited = infer(12, model)
    assert same_bits(plain, limited) and session.stats.bytes_in > 0
    sizes = [s.size_bytes for s in session.trace.storages if s.category is Category.PARAMETER]
    assert sizes == 4 * [WIDTH * WIDTH * 4]


def test_an_evaluation_before_training_ends_no_iteration():
    model = chain(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with memfit.session("90%", "ram") as session:
        infer(4, model)
        assert session.stats.iterations == 0
        for _ in range(3):
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            optimizer.step()
        infer(4, model)
    assert session.stats.iterations == 3 and not session.forward_only


def test_an_evaluation_beside_training_without_an_optimizer_ends_no_iteration():
    model = chain(2)
    with memfit.session(None, "ram") as session:
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        infer(4, model)
    assert session.stats.iterations == 0


def test_a_pass_on_device_meta_ends_nothing():
    with memfit.session(None, "ram") as session, torch.no_grad():
        model = nn.Linear(4, 4, device="meta")
        for _ in range(3):
            model(torch.ones(2, 4, device="meta"))
    assert session.stats.iterations == 0


def test_training_by_hand_after_an_evaluation_is_still_found_by_its_period():
    with memfit.session(None, "ram") as session:
        infer(1, chain(2))
        train_by_hand(60)
    assert session.stats.iterations > 10 and not session.forward_only


def test_training_after_passes_that_set_the_limit_is_told_and_counted_by_its_steps(capsys):
    model = chain(4)
    with memfit.session("90%", "ram") as session:
        infer(3, model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(BATCH, WIDTH)).sum().backward()
            optimizer.step()
    assert session.stats.iterations == 3
    assert capsys.readouterr().err.count("a share of the forward passes that came before training") == 1
