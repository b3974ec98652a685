"""Everything that a tensor and a storage have, public or not, gives the same whether the bytes are away or not.

What it gives is looked at once more after other work: an address that had got out without a pin would show other
bytes then. So a door that torch adds is found here.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

import memfit
from memfit.errors import BudgetError

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
SIDE = 80
BUDGET = 8 * SIDE * SIDE * 4

# Not for a call without arguments: they end the object, another one's life or the process, or are no function of it.
LEFT_OUT = {
    "__class__", "__dir__", "__init_subclass__", "__subclasshook__", "__new__", "__init__", "__sizeof__", "__doc__",
    "__weakref__", "__dict__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__hash__", "__repr__",
    "__str__", "__format__", "__dlpack__", "__cuda_array_interface__", "__array__", "__delattr__", "__deepcopy__",
    "_free_weak_ref", "_new_with_weak_ptr", "_expired", "_fix_weakref", "_set_cdata", "_cdata", "_weak_ref",
    "_shared_decref", "_shared_incref", "_release_ipc_counter", "_release_ipc_counter_cuda", "_backward_hooks",
    "grad_fn", "backward", "register_hook", "_make_subclass", "_make_wrapper_subclass", "_make_dtensor",
    "_share_fd_cpu_", "_share_filename_cpu_", "_get_shared_fd", "share_memory_", "_new_shared", "_set_from_file",
    "_write_file", "diagflat", "diag_embed", "_resize_with_addr_", "data_ptr", "const_data_ptr", "mutable_data_ptr",
    "tolist",
}  # fmt: skip
RANDOM = {"bernoulli", "bernoulli_", "normal_", "uniform_", "cauchy_", "exponential_", "geometric_", "log_normal_",
          "random_", "multinomial"}  # fmt: skip
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "__getitem__": (slice(3, 40),), "__contains__": (3.0,), "__setitem__": (2, 1), "__rsub__": (1.0,),
    "new": (), "to": (torch.float64,), "type": (torch.float64,), "reshape": (-1,), "view": (-1,), "copy_": (None,),
}  # fmt: skip


def nothing() -> None:
    """Leave all as it is."""


def press() -> None:
    fillers = [torch.full((SIDE, SIDE), float(number)) for number in range(9)]
    for filler in fillers:
        filler.add_(1)


def made(kind: str) -> Any:
    torch.manual_seed(0)
    tensor = torch.arange(SIDE * SIDE, dtype=torch.float32).view(SIDE, SIDE) / 1000
    tensor.add_(0)
    return tensor.untyped_storage() if kind == "storage" else tensor


def seen(value: Any, depth: int = 0) -> Any:
    """Return a result as data: its bytes as they are now."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized:
            return str(value.layout), tuple(value.shape)
        dense = value.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        return str(value.dtype), tuple(value.shape), hash(dense.view(torch.uint8).clone().numpy().tobytes())
    if isinstance(value, torch.UntypedStorage):
        return "storage", value.nbytes(), seen(torch.tensor([], dtype=torch.uint8).set_(value)) if value.nbytes() else 0
    if isinstance(value, torch.TypedStorage):
        return "typed", seen(value._untyped_storage)
    if isinstance(value, (list, tuple, set, torch.Size)):
        return type(value).__name__, [seen(item, depth + 1) for item in list(value)[:64]]
    if isinstance(value, (int, float, complex, bool, str, bytes, torch.dtype, torch.device, type(None))):
        return str(value)
    if type(value).__module__ == "numpy":
        return seen(torch.from_numpy(value)) if hasattr(value, "shape") and value.shape else str(value)
    return type(value).__name__


def names(owner: type) -> Iterator[str]:
    yield from sorted(name for name in dir(owner) if name not in LEFT_OUT | RANDOM)


def given(target: Any, name: str) -> Any:
    """Return what the attribute is, or gives when it is called."""
    try:
        value = getattr(target, name)
        if callable(value) and not isinstance(value, type):
            arguments = ARGUMENTS.get(name, ())
            value = value(*(made("storage") if a is None else a for a in arguments))
        return list(value) if isinstance(value, (types.GeneratorType, map, zip)) else value
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        assert "memfit" not in str(error), f"{name}: {error}"
        return f"{type(error).__name__}"


def looked_at(kind: str, name: str, before: Callable[[], None], after: Callable[[], None]) -> Any:
    target = made(kind)
    before()
    result = given(target, name)
    first = seen(result)
    after()
    return first, seen(result), seen(target) if name not in ("resize_",) else None


OWNERS = {"tensor": torch.Tensor, "storage": torch.UntypedStorage}


@pytest.mark.parametrize(("kind", "state"), [
    ("storage", "away"), ("storage", "here"), ("tensor", "away"),
    pytest.param("tensor", "here", marks=pytest.mark.slow),
])  # fmt: skip
@pytest.mark.long
def test_every_attribute_gives_what_it_gives_plainly(kind, state):
    warnings.simplefilter("ignore")
    before = press if state == "away" else nothing
    every = list(names(OWNERS[kind]))
    expected = {name: looked_at(kind, name, nothing, nothing) for name in every}
    got = {}
    with memfit.session(BUDGET, "ram", plan=False):
        for name in every:
            with suppress(BudgetError):  # what it gives is too much here
                got[name] = looked_at(kind, name, before, press)
    assert {name: got[name] for name in got if got[name] != expected[name]} == {}
    assert len(got) > 0.9 * len(every)
