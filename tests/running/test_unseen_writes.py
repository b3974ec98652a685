"""The engine itself must notice every byte that an operator changes: what it missed would be dropped on eviction.

`test_schema_truth.py` compares schemas with what operators do. Here the engine is asked: each leaf call runs in a
thread of its own, where it is an outermost op, is recorded, and whatever it changed must be recorded as written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

import memfit
from memfit.running import engine
from memfit.tracing.build import table_of

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore")]
LARGEST_BYTES = 1 << 18
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64)


def storages(values: Any) -> Iterator[torch.UntypedStorage]:
    """Yield the storage of every dense tensor, and those inside sparse ones."""
    for tensor in tree_leaves(values):
        if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
            continue
        if tensor.layout is torch.sparse_coo:
            yield from storages([tensor._indices(), tensor._values()])
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield from storages([tensor.crow_indices(), tensor.col_indices(), tensor.values()])
        elif tensor.layout is torch.strided and torch._C._has_storage(tensor):
            yield tensor.untyped_storage()


class Watch(TorchDispatchMode):
    """Notes leaf calls that changed an input which the engine did not take for written."""

    def __init__(self, session: memfit.Session) -> None:
        super().__init__()
        self.missed: set[str] = set()
        self.calls = self.writes = 0
        self._session = session
        self._thread = ThreadPoolExecutor(1)

    def __exit__(self, *args: Any) -> None:
        super().__exit__(*args)
        self._thread.shutdown()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with _disable_current_modes():
            before = {s._cdata: (s, self._bytes(s)) for s in storages([args, kwargs]) if s.nbytes() <= LARGEST_BYTES}
            keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
            out, written = self._thread.submit(_recorded, lambda: func(*args, **kwargs), keys).result()
            self.calls += 1
            for storage, content in before.values():
                if storage.nbytes() == len(content) and self._bytes(storage) != content:
                    self.writes += 1
                    if engine.load().block_id(storage) not in written:
                        self.missed.add(str(func))
        return out

    def _bytes(self, storage: torch.UntypedStorage) -> bytes:
        try:
            return self._session.read_bytes(storage) if storage.nbytes() else b""
        except ValueError:  # torch knows it to be all zeros
            return b""


def _recorded(call: Callable[[], Any], keys: tuple[Any, Any]) -> tuple[Any, set[int]]:
    """Run `call` with the caller's dispatch keys; return its result and the blocks that the engine saw written."""
    loaded = engine.load()
    loaded.start_recording()
    try:
        with torch._C._ForceDispatchKeyGuard(*keys):
            out = call()
    finally:
        accesses = table_of(loaded.stop_recording(), "accesses")
    return out, set(accesses["block"][accesses["is_write"] != 0].tolist())


def backward(out: Any) -> None:
    losses = [t.abs().sum() for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.requires_grad]
    if losses:
        torch.autograd.backward(losses)


def watched(jobs: Iterator[Callable[[], Any]]) -> Watch:
    """Run jobs forward and backward; one that fails by itself is not what is looked for."""
    with memfit.session(None, "ram") as session:
        loaded = engine.load()
        loaded.stop_recording()
        with Watch(session) as watch:
            for job in jobs:
                try:
                    backward(job())
                except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError, AttributeError):
                    continue
    return watch


def likely_writers() -> Iterator[Callable[[], Any]]:
    """Operators that keep statistics, noise or workspaces in their inputs."""
    images, steps = torch.randn(4, 3, 8, 8, requires_grad=True), torch.randn(5, 2, 3, requires_grad=True)
    weight, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
    mean, var = torch.zeros(3), torch.ones(3)
    for train in (True, False):
        for module, value in [
            (torch.nn.BatchNorm2d(3), images),
            (torch.nn.BatchNorm2d(3, momentum=None, affine=False), images),
            (torch.nn.InstanceNorm2d(3, track_running_stats=True), images),
            (torch.nn.RReLU(), images),
            (torch.nn.RReLU(inplace=True), images * 1),
            (torch.nn.Dropout(inplace=True), images * 1),
            (torch.nn.LSTM(3, 4, 2, bidirectional=True, dropout=0.2), steps),
            (torch.nn.GRU(3, 4), steps),
            (torch.nn.RNN(3, 4), steps),
            (torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 4)), steps),
            (torch.nn.MultiheadAttention(4, 2), None),
            (torch.nn.Embedding(10, 3, max_norm=0.1), torch.tensor([1, 2])),
            (torch.nn.EmbeddingBag(10, 3, max_norm=0.1, mode="max"), torch.tensor([[1, 2]])),
            (torch.ao.quantization.FakeQuantize(observer=torch.ao.quantization.MovingAverageMinMaxObserver), images),
        ]:
            module.train(train)
            inputs = (torch.randn(3, 2, 4),) * 3 if value is None else (value,)
            yield lambda module=module, inputs=inputs: module(*inputs)
    yield lambda: torch.native_batch_norm(images, weight, bias, mean, var, True, 0.1, 1e-5)
    yield lambda: torch.ops.aten._native_batch_norm_legit(images, weight, bias, mean, var, True, 0.1, 1e-5)
    yield lambda: torch.ops.aten._batch_norm_with_update(images, weight, bias, mean, var, 0.1, 1e-5)
    yield lambda: torch.batch_norm_update_stats(images.detach(), mean, var, 0.1)
    yield lambda: torch.ops.aten.rrelu_with_noise(images, torch.zeros_like(images), 0.1, 0.3, True)
    yield lambda: F.rrelu_(images * 1, training=True)
    yield lambda: torch._amp_foreach_non_finite_check_and_unscale_([mean], torch.zeros(1), torch.ones(1) * 0.5)
    yield lambda: torch._amp_update_scale_(torch.ones(1), torch.zeros(1, dtype=torch.int32), torch.ones(1), 2, 0.5, 1)
    yield lambda: F.ctc_loss(torch.randn(9, 2, 5).log_softmax(2).requires_grad_(), torch.ones(2, 3, dtype=torch.long),
                             torch.tensor([9, 9]), torch.tensor([3, 3]))  # fmt: skip
    yield lambda: torch.histc(images.detach())
    yield lambda: torch.eye(4).to_sparse().coalesce().add_(torch.eye(4).to_sparse())
    for fused in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
        parameter = torch.nn.Parameter(torch.ones(9))
        parameter.grad = torch.ones(9)
        yield fused([parameter], lr=0.1, fused=True).step


@pytest.mark.long
def test_operators_that_keep_something_in_their_inputs():
    watch = watched(likely_writers())
    assert not watch.missed
    assert watch.calls > 100 and watch.writes > 20, "the check itself sees nothing"


def test_a_write_that_the_engine_cannot_see_is_found_by_this_check():
    """numpy writes inside a call, which stands for an operator that is not listed."""
    with memfit.session(None, "ram") as session:
        engine.load().stop_recording()
        tensor = torch.zeros(9)
        array = tensor.numpy()
        with Watch(session) as watch, torch.no_grad():
            watch.__torch_dispatch__(Sneaky(array), (), (tensor,))
    assert watch.missed == {"sneaky"}


class Sneaky:
    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __str__(self) -> str:
        return "sneaky"

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self._array += 1
        return tensor.neg()


def samples(op: Any) -> Iterator[Callable[[], Any]]:
    for dtype in DTYPES:
        if op.name.startswith("jiterator") or dtype not in op.supported_dtypes("cpu"):  # the former is for CUDA
            continue
        try:
            grad = op.supports_autograd and dtype.is_floating_point
            made = list(op.sample_inputs("cpu", dtype, requires_grad=grad))[:6]
        except Exception:  # a sample that this build of torch cannot make
            continue
        for sample in made:
            yield lambda s=sample: op(s.input, *s.args, **s.kwargs)
            if op.inplace_variant is not None:
                yield lambda s=sample: op.inplace_variant(s.input.detach().clone(), *s.args, **s.kwargs)


def module_samples(info: Any, training: bool) -> Iterator[Callable[[], Any]]:
    try:
        made = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )  # fmt: skip
    except Exception:
        return
    for sample in made[:6]:
        try:
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).train(training)
        except Exception:
            continue
        forward = sample.forward_input
        if forward is not None:
            yield lambda m=module, f=forward: m(*f.args, **f.kwargs)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_operator_of_torch_s_own_tests():
    pytest.importorskip("expecttest", reason="torch's operator samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    watch = watched(job for op in op_db for job in samples(op))
    assert not watch.missed
    assert watch.calls > 10_000


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("training", [True, False])
def test_every_module_of_torch_s_own_tests(training):
    pytest.importorskip("expecttest", reason="torch's module samples need it")
    from torch.testing._internal.common_modules import module_db

    watch = watched(job for info in module_db for job in module_samples(info, training))
    assert not watch.missed
    assert watch.calls > 1000
