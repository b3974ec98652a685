"""Python that runs inside an op, and keeps an address: it stays good, whoever calls that Python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.graph import allow_mutation_on_saved_tensors, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import memfit
from memfit.errors import UsageError
from running.doors.outside import original, through_ctypes
from running.plainly import as_plainly, same_bits
from running.pressure import COUNT, press, ramp

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
SIZE = 4 * COUNT
BUDGETS = [None, 12 * SIZE, 8 * SIZE]


# Ways to an address -> how it is asked of a tensor.
WAYS: dict[str, Callable[[Tensor], int]] = {
    "data_ptr": lambda t: t.data_ptr(),
    "a storage's": lambda t: t.untyped_storage().data_ptr(),
    "a typed storage's": lambda t: t.detach().storage().data_ptr(),
    "unbound": lambda t: torch._C.TensorBase.data_ptr(t),
    "mutable": lambda t: t.mutable_data_ptr() if hasattr(t, "mutable_data_ptr") else t.data_ptr(),
    "data_address": lambda t: torch._C._data_address(t),
    "numpy": lambda t: t.detach().numpy().ctypes.data,
    "DLPack": lambda t: np.from_dlpack(t.detach()).ctypes.data,
    "a slice": lambda t: t.untyped_storage()[0 : t.nbytes].data_ptr(),
}
if hasattr(torch.Tensor, "const_data_ptr"):
    WAYS["const_data_ptr"] = lambda t: t.const_data_ptr()


class Asker:
    """Asks for addresses, and keeps them with their tensors."""

    def __init__(self, way: Callable[[Tensor], int]) -> None:
        self.way = way
        self.kept: list[tuple[Tensor, int]] = []

    def ask(self, *values: object) -> None:
        """Ask for the addresses of the tensors among these, and in lists of them."""
        for value in values:
            if isinstance(value, (list, tuple)):
                self.ask(*value)
            elif isinstance(value, Tensor) and torch._C._has_storage(value) and value.numel() == COUNT:
                self.kept.append((value.detach() if type(value) is Tensor else value, self.way(value)))

    def are_good(self) -> bool:
        """Return whether each tensor is where it was said to be, with its bytes."""
        return bool(self.kept) and all(
            original(torch.Tensor.data_ptr)(tensor) == address
            and same_bits(torch.from_numpy(through_ctypes(address).copy()), tensor.reshape(-1).detach())
            for tensor, address in self.kept
        )


def in_hook(ask: Callable[..., None], program: Callable[[Tensor], Tensor]) -> None:
    def pack(tensor: Tensor) -> Tensor:
        ask(tensor)
        return tensor

    x = ramp().requires_grad_() * 1
    with saved_tensors_hooks(pack, lambda t: t):
        y = program(x)
    del x
    press()
    y.sum().backward()


def what_a_hook_saves(ask: Callable[..., None]) -> None:
    in_hook(ask, lambda x: x**2)


def what_a_hook_saves_of_results(ask: Callable[..., None]) -> None:
    in_hook(ask, torch.exp)


def what_a_hook_unpacks(ask: Callable[..., None]) -> None:
    def unpack(tensor: Tensor) -> Tensor:
        ask(tensor)
        return tensor

    with saved_tensors_hooks(lambda t: t, unpack):
        y = (ramp().requires_grad_() * 1) ** 2
    press()
    y.sum().backward()


def what_a_mode_dispatches(ask: Callable[..., None]) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            ask(*args)
            result = func(*args, **(kwargs or {}))
            ask(result)
            return result

    x = ramp()
    with Mode():
        y = x * 2 + x
        torch._foreach_add_([x, y], 1.0)


def what_a_mode_of_functions_sees(ask: Callable[..., None]) -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            with torch._C.DisableTorchFunction():
                ask(*args)
                result = func(*args, **(kwargs or {}))
                ask(result)
            return result

    x = ramp()
    with Mode():
        torch.nn.functional.softmax(x * 2, 0)


class Wrapping(Tensor):
    """Has another tensor do its ops, and asks for addresses on the way."""

    ask: Callable[..., None]
    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapping:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner = [value.inner if isinstance(value, Wrapping) else value for value in args]
        cls.ask(*inner)
        result = func(*inner, **(kwargs or {}))
        cls.ask(result)
        return cls(result)


def what_a_wrapper_passes_on(ask: Callable[..., None]) -> None:
    Wrapping.ask = staticmethod(ask)  # type: ignore[assignment]
    Wrapping(ramp()) * 2 + 1


asking: Callable[..., None] = print


@torch.library.custom_op("memfit_tests::asks", mutates_args=("out",))
def asks(x: Tensor, out: Tensor) -> Tensor:
    """Take the sum by addresses."""
    made = torch.empty_like(x)
    asking(x, out, made)
    np.add(through_ctypes(x.data_ptr()), through_ctypes(out.data_ptr()), out=through_ctypes(made.data_ptr()))
    through_ctypes(out.data_ptr())[:] = 1
    return made


def what_a_custom_op_is_given(ask: Callable[..., None]) -> None:
    global asking
    asking = ask
    x, out = ramp(), ramp()
    press()
    made = torch.ops.memfit_tests.asks(x, out)  # (from 2.14 on, torch calls the function itself otherwise)
    press()
    assert torch.equal(made, 2 * ramp()) and torch.equal(out, torch.ones(COUNT))


def what_a_function_is_given(ask: Callable[..., None]) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ask(x)
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            ask(gradient, *ctx.saved_tensors)
            return gradient * 2

    y = Doubled.apply(ramp().requires_grad_() * 1)
    press()
    (y * y).sum().backward()


def what_hooks_of_the_graph_are_given(ask: Callable[..., None]) -> None:
    x = ramp().requires_grad_()
    y = x * 2
    y.register_hook(lambda gradient: ask(gradient))
    z = y * 3
    z.grad_fn.register_prehook(lambda given: ask(*given))
    z.grad_fn.register_hook(lambda made, given: ask(*made, *given))
    x.register_post_accumulate_grad_hook(lambda leaf: ask(leaf.grad))
    (z * z).sum().backward()


def what_is_computed_again(ask: Callable[..., None]) -> None:
    def block(x: Tensor) -> Tensor:
        y = x.sin()
        ask(y)
        return y.cos()

    y = checkpoint(block, ramp().requires_grad_() * 1, use_reentrant=False)
    press()
    y.sum().backward()


PLACES = [
    what_a_hook_saves,
    what_a_hook_saves_of_results,
    what_a_hook_unpacks,
    what_a_mode_dispatches,
    what_a_mode_of_functions_sees,
    what_a_wrapper_passes_on,
    what_a_custom_op_is_given,
    what_a_function_is_given,
    what_hooks_of_the_graph_are_given,
    what_is_computed_again,
]


@pytest.mark.parametrize("budget", [None, 16 * SIZE])
@pytest.mark.parametrize("place", PLACES)
def test_an_address_stays_good_wherever_it_was_asked_for(place, budget):
    for name, way in WAYS.items():
        asker = Asker(way)
        place(asker.ask)
        assert asker.are_good(), "it is a fault of this test's own"
        asker = Asker(way)
        with memfit.session(budget, "ram"):
            place(asker.ask)
            press()
            assert asker.are_good(), name


@pytest.mark.parametrize("place", PLACES[:4])
def test_an_address_stays_good_if_its_op_ran_on_mapped_storages(place):
    asker = Asker(lambda t: t.data_ptr())
    with memfit.session(16 * SIZE, "ram", map="always"):
        place(asker.ask)
        press()
        assert asker.are_good()
    assert asker.are_good(), "nor does it move when the session ends"


def steps_of(program: Callable[[Tensor], Tensor], hooks: Callable[[], AbstractContextManager[object]]) -> list[Tensor]:
    """Return the gradients of three steps, between whose passes everything that may leave the arena does."""
    x = torch.linspace(0, 1, COUNT).requires_grad_()
    gradients = []
    for _ in range(3):
        with hooks():
            loss = program(x)
            press()
            loss.backward()
        gradients.append(x.grad)
        x.grad = None
    return gradients


def mutating(x: Tensor) -> Tensor:
    a = x * 2
    loss = (a**2).sum()
    press()
    a.sin_()  # what was saved of it is to be cloned
    return loss


def mutating_what_numpy_has(x: Tensor) -> Tensor:
    a = x * 2
    loss = (a**2).sum()
    press()
    a.detach().numpy()
    a.sin_()
    return loss


def mutating_through_another_storage(x: Tensor) -> Tensor:
    a = x.detach() * 2
    loss = (x * a).sum()
    press()
    torch.from_numpy(a.numpy()).sin_()
    return loss


@pytest.mark.parametrize("budget", [*BUDGETS, 5 * SIZE])
@pytest.mark.parametrize("program", [mutating, mutating_what_numpy_has, mutating_through_another_storage])
def test_what_is_written_to_after_it_was_saved_is_cloned_as_plainly(program, budget):
    as_plainly(lambda: steps_of(program, allow_mutation_on_saved_tensors), budget, "ram")


def test_a_session_neither_begins_nor_ends_unseen_where_torch_knows_storages_by_addresses():
    refused = pytest.raises(UsageError, match="a session cannot begin within allow_mutation")
    with allow_mutation_on_saved_tensors(), refused, memfit.session(None):
        pass
    mode = allow_mutation_on_saved_tensors()
    with pytest.raises(UsageError, match="the session ended within allow_mutation"), memfit.session(None):
        mode.__enter__()
    mode.__exit__(None, None, None)
    with memfit.session(None):
        assert torch.equal(ramp() + 1, ramp().add(1))


class Offloader:
    """Keeps saved tensors by the addresses of their storages, so that one of which views are saved is kept once."""

    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> tuple[Any, ...]:
        key = tensor.untyped_storage().data_ptr()
        self.kept.setdefault(key, tensor)
        return key, tensor.size(), tensor.stride(), tensor.storage_offset()

    def unpack(self, packed: tuple[Any, ...]) -> Tensor:
        key, *view = packed
        return self.kept[key].as_strided(*view)


class Writer:
    """Has a thread read saved tensors by their addresses, as if to write them to a disk; they are kept alive meanwhile.

    It reads when they are wanted, which is as late as it may be.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def pack(self, tensor: Tensor) -> tuple[Tensor, int]:
        return tensor.detach(), tensor.data_ptr()

    def unpack(self, packed: tuple[Tensor, int]) -> Tensor:
        tensor, address = packed
        job: Future[bytes] = self.pool.submit(ctypes.string_at, address, tensor.nbytes)
        return torch.frombuffer(bytearray(job.result()), dtype=tensor.dtype).as_strided(tensor.size(), tensor.stride())


def layers(x: Tensor) -> Tensor:
    h = x * 1
    for number in range(8):
        h = (h * (1 + number / 8)).sin()
    return h.square().sum()


def layers_and_views(x: Tensor) -> Tensor:
    return layers(x) + (x.view(2, -1).T * x.view(-1, 2)).sin().square().sum()


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.mark.parametrize("budget", [None, 40 * SIZE, 24 * SIZE])
@pytest.mark.parametrize("program", [layers, layers_and_views])
@pytest.mark.parametrize("kind", ["by address", "asynchronous"])
def test_an_offloader_that_keeps_addresses_gives_the_same_bits(kind, program, budget, pool):
    def hooks() -> AbstractContextManager[object]:
        offloader = Offloader() if kind == "by address" else Writer(pool)
        return saved_tensors_hooks(offloader.pack, offloader.unpack)

    as_plainly(lambda: steps_of(program, hooks), budget, "ram")
    assert same_bits(steps_of(program, hooks), steps_of(program, nullcontext)), "nor does it change any plainly"


@pytest.mark.timeout(45)
def test_an_address_asked_for_in_an_op_does_not_wait_for_that_op_to_let_go_of_room():
    """With no room left for what is asked for, the limit gives way at once; it waited 10 s each time before."""
    with memfit.session(1 << 20, "ram", plan=False, grow=True) as session:
        kept = [torch.full((1 << 16,), float(i)) for i in range(12)]  # 256 KiB each: most are away
        weight = torch.ones(64, requires_grad=True)

        def pack(saved: torch.Tensor) -> torch.Tensor:
            for tensor in kept:
                tensor.data_ptr()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            weight.square().sum()
        assert session.stats.peak_footprint_bytes > 12 << 18
        assert all(bool((tensor == i).all()) for i, tensor in enumerate(kept))
