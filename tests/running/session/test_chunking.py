"""Ops on lists of tensors give the same bits, results, errors and gradients when they are split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from memfit.running import engine
from memfit.running.session import chunking
from running.plainly import same_bits

pytestmark = pytest.mark.timeout(60)
SHAPES = ((3,), (4, 5), (), (2, 0), (17,), (1, 1, 2), (6, 4))
COUNT = len(SHAPES)


@pytest.fixture(params=[1, 64])
def chunks(request) -> Callable[[], AbstractContextManager[None]]:
    """Chunks of one tensor each, and of a few."""
    return lambda: chunking.installed(engine.load(), request.param)


def tensors(seed: int, *, grad: bool = False) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.rand(shape, generator=generator) + 0.1 for shape in SHAPES]
    made[-1] = made[-1].t()  # one that is not contiguous
    return [t.requires_grad_() for t in made] if grad else made


def foreach_overloads() -> list[str]:
    """Return "name.overload" of every list op that Python can reach as torch._foreach_*."""
    names = [name for name in dir(torch) if name.startswith("_foreach_")]
    packets = {name: getattr(torch.ops.aten, name) for name in names}
    return [
        f"{name}.{overload}"
        for name, packet in packets.items()
        for overload in packet.overloads()
        if not overload.endswith("out")
    ]


def arguments(schema: torch.FunctionSchema) -> list[Any]:
    """Make one value for every argument of the schema that has no default."""
    if schema.name == "aten::_foreach_max":  # takes no empty tensor
        return [[t for t in tensors(0) if t.numel()]]
    if schema.name == "aten::_foreach_mm":
        return [[torch.full((n, n), 0.1 + n) for n in range(1, 6)], [torch.full((n, n), 0.1 + n) for n in range(1, 6)]]
    made: list[Any] = []
    for number, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        if argument.has_default_value():
            break
        if kind in ("List[Tensor]", "Tensor[]"):
            made.append(tensors(number))
        elif kind in ("List[number]", "Scalar[]", "List[Scalar]"):
            made.append([0.25 + 0.5 * i for i in range(COUNT)])
        elif kind == "Tensor":
            scalars = argument.name == "scalars"  # one for each tensor
            made.append(torch.linspace(0.5, 2, COUNT) if scalars else torch.tensor(1.5))
        elif kind in ("number", "Scalar"):
            made.append(1.25)
        else:
            pytest.skip(f"takes a {kind}")
    return made


def seen(value: Any) -> Any:
    """Return a result as data: what kind of sequence it is, and every tensor's bits."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8)
        return str(value.dtype), tuple(value.shape), value.stride(), bits.tolist()
    if isinstance(value, (list, tuple)):
        return type(value), [seen(item) for item in value]
    return value


def outcome(name: str, args: list[Any], **kwargs: Any) -> Any:
    """Call the op; return its result and its arguments afterwards, or the type of its error."""
    try:
        result = getattr(torch, name)(*args, **kwargs)
    except Exception as error:
        return type(error)
    return seen(result), seen(args)


@pytest.mark.parametrize("overload", foreach_overloads())
def test_a_split_call_equals_the_whole_one(overload, chunks):
    name, _, which = overload.partition(".")
    schema = getattr(getattr(torch.ops.aten, name), which)._schema
    whole = outcome(name, arguments(schema))
    with chunks():
        split = outcome(name, arguments(schema))
    assert not isinstance(whole, type), whole
    assert split == whole


def lengths_of_calls() -> list[int]:
    """Call a list op; return how many tensors each call of torch's has been given."""
    calls = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(len(args[0]))
            return func(*args, **(kwargs or {}))

    given = tensors(0)
    with Counting():
        torch._foreach_add_(given, 1.0)
    return calls


def test_it_is_split_and_is_the_same_function_still(chunks):
    add = torch._foreach_add_
    known = {add: "as the compiler knows it"}
    with chunks():
        calls = lengths_of_calls()
        assert torch._foreach_add_ is add and add in known
    assert len(calls) > 1 and sum(calls) == COUNT


WRONG = {
    "a shorter second list": ("_foreach_add", lambda: [tensors(0), tensors(1)[:1]]),
    "a shorter second list, in place": ("_foreach_add_", lambda: [tensors(0), tensors(1)[:1]]),
    "a longer second list": ("_foreach_mul", lambda: [tensors(0), [*tensors(1), torch.ones(3)]]),
    "too few scalars": ("_foreach_add", lambda: [tensors(0), [1.0]]),
    "too many scalars": ("_foreach_mul_", lambda: [tensors(0), [1.0] * (COUNT + 1)]),
    "no second list": ("_foreach_add_", lambda: [tensors(0), []]),
    "shapes that do not fit": ("_foreach_add", lambda: [tensors(0), tensors(1)[::-1]]),
    "a third list too short": ("_foreach_addcmul_", lambda: [tensors(0), tensors(1), tensors(2)[:1]]),
    "a leaf that requires grad": ("_foreach_mul_", lambda: [tensors(0, grad=True), 2.0]),
    "a scalar tensor of the wrong size": ("_foreach_mul", lambda: [tensors(0), torch.ones(2)]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_plainly_is_wrong_in_chunks(case, chunks):
    name, make = WRONG[case]
    whole = outcome(name, make())
    assert isinstance(whole, type)
    with chunks():
        assert outcome(name, make()) is whole


@pytest.mark.parametrize("args", [[[]], [[], 2.0], [[], []], [[], [], []], [()]])
@pytest.mark.parametrize("name", ["_foreach_add", "_foreach_mul_", "_foreach_sqrt", "_foreach_norm", "_foreach_copy_"])
def test_empty_lists(name, args, chunks):
    whole = outcome(name, args)
    with chunks():
        assert outcome(name, args) == whole


@pytest.mark.parametrize("kwargs", [{"alpha": 2}, {"alpha": -0.5}])
def test_keywords_reach_every_chunk(kwargs, chunks):
    whole = outcome("_foreach_add_", [tensors(0), tensors(1)], **kwargs)
    with chunks():
        assert outcome("_foreach_add_", [tensors(0), tensors(1)], **kwargs) == whole


@pytest.mark.parametrize("order", [1, 2, float("inf")])
def test_norms_of_any_order(order, chunks):
    whole = outcome("_foreach_norm", [tensors(0), order], dtype=torch.float64)
    with chunks():
        assert outcome("_foreach_norm", [tensors(0), order], dtype=torch.float64) == whole


def test_lists_by_keyword_and_tuples_are_split_alike(chunks):
    def call() -> Any:
        first = tensors(0)
        torch._foreach_add_(self=tuple(first), other=tuple(tensors(1)))
        return seen(first)

    whole = call()
    with chunks():
        assert call() == whole


def test_the_same_tensor_several_times_in_a_list(chunks):
    def call() -> Any:
        tensor = torch.ones(5)
        torch._foreach_mul_([tensor] * COUNT, [1.0 + i for i in range(COUNT)])
        return seen(tensor)

    whole = call()
    with chunks():
        assert call() == whole


def test_gradients_flow_through_chunks(chunks):
    def gradients() -> Any:
        leaves = tensors(0, grad=True)
        sum(t.sum() for t in torch._foreach_mul(torch._foreach_sqrt(leaves), leaves)).backward()
        return seen([leaf.grad for leaf in leaves])

    whole = gradients()
    with chunks():
        assert gradients() == whole


def test_the_ops_are_whole_again_even_after_an_error(chunks):
    with pytest.raises(ZeroDivisionError), chunks():
        raise ZeroDivisionError
    assert lengths_of_calls() == [COUNT]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam": lambda p: torch.optim.Adam(p, foreach=True, weight_decay=0.1),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, foreach=True, amsgrad=True, maximize=True),
    "Adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "Adam, fused, amsgrad": lambda p: torch.optim.Adam(p, fused=True, amsgrad=True, weight_decay=0.1),
    "Adam, tensor lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, foreach=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, foreach=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "SGD, fused, momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, foreach=True),
    "Adagrad, fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5, foreach=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, foreach=True),
    "NAdam": lambda p: torch.optim.NAdam(p, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, foreach=True),
    "ASGD": lambda p: torch.optim.ASGD(p, foreach=True),
    "Rprop": lambda p: torch.optim.Rprop(p, foreach=True),
}


def trained(make: Callable[[Any], torch.optim.Optimizer], steps: int = 4) -> Any:
    """Step on parameters of 64 KiB and less with made-up gradients; return all that there is then."""
    generator = torch.Generator().manual_seed(7)
    parameters = [torch.nn.Parameter(torch.randn(n, generator=generator)) for n in [1 << 14] * 10 + [7, 1, 300]]
    optimizer = make(parameters)
    norms = []
    for step in range(steps):
        for number, parameter in enumerate(parameters):
            if step == 0 or (step + number) % 5:
                parameter.grad = torch.randn(parameter.shape, generator=generator)
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 50.0, foreach=True))
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    torch.nn.utils.clip_grad_value_(parameters, 0.1, foreach=True)
    states = [[value for _, value in sorted(optimizer.state[p].items())] for p in parameters]
    return [parameters, states, norms]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_steps_within_a_budget_below_its_state(name):
    plain = trained(OPTIMIZERS[name])
    with memfit.session(1 << 20, "ram") as session:
        limited = trained(OPTIMIZERS[name])
        assert same_bits(plain, limited)
    assert same_bits(plain, limited)
    if name != "SGD, fused" and name != "SGD":  # weights and gradients alone are 1.25 MiB
        assert session.stats.evictions > 0


def test_a_gradient_scaler_unscales_within_the_budget():
    def scaled() -> list[Any]:
        parameters = [torch.nn.Parameter(torch.full((1 << 15,), float(i))) for i in range(12)]
        optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scaler.scale(sum(p.sum() for p in parameters)).backward()
        scaler.step(optimizer)
        scaler.update()
        return [parameters, [scaler.get_scale()]]

    plain = scaled()
    with memfit.session(1 << 20, "ram"):
        assert same_bits(plain, scaled())


LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_lists_of_sparse_tensors_are_worked_on_as_plainly(layout, chunks):
    blocks = {"blocksize": (2, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    made = [torch.eye(6).to_sparse(layout=layout, **blocks) for _ in range(5)]
    expected = torch._foreach_neg(made)
    with chunks():
        got = torch._foreach_neg(made)
        assert [t.layout for t in got] == [layout] * 5
        assert all(torch.equal(a.to_dense(), b.to_dense()) for a, b in zip(got, expected, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_what_a_list_op_cannot_do_stays_the_error_that_it_is(chunks):
    nested = [torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) for _ in range(3)]
    with pytest.raises(NotImplementedError), chunks():
        torch._foreach_mul(nested, 2.0)
