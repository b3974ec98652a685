"""Which operators write to an input that their schema does not mark: the engine must know them all.

A clean storage is dropped on eviction, not written; one that was changed unseen would come back with old bytes.
"""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import memfit
from memfit.running import engine
from running.stress import verified

LARGEST = 1 << 20  # bytes of a storage that is looked at


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)


def contents(tensor):
    """The whole storage's bytes, or None for what has none to look at."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu" or tensor._is_zerotensor():
        return None
    storage = tensor.untyped_storage()
    if not 0 < storage.nbytes() <= LARGEST or storage.data_ptr() == 0:
        return None
    return torch.empty(0, dtype=torch.uint8).set_(storage).clone()


class Watch(TorchDispatchMode):
    """Collects the names of ops that changed an argument their schema does not mark as written."""

    def __init__(self):
        super().__init__()
        self.liars = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with _disable_current_modes():
            before, written = self.look(func, args, kwargs)
        out = func(*args, **kwargs)
        with _disable_current_modes():
            for tensor, bytes_before in before:
                after = contents(tensor)
                changed = after is None or after.shape != bytes_before.shape or not torch.equal(after, bytes_before)
                if changed and tensor.untyped_storage()._cdata not in written:
                    self.liars.add(func._schema.name)
        return out

    def look(self, func, args, kwargs):
        before, written = [], set()
        for index, argument in enumerate(func._schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            marked = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors(value):
                if marked and tensor.layout is torch.strided:
                    written.add(tensor.untyped_storage()._cdata)
                elif not marked and (bytes_now := contents(tensor)) is not None:
                    before.append((tensor, bytes_now))
        return before, written


def run_backward(out):
    leaves = [t.abs().sum() if t.is_complex() else t.sum() for t in tensors(out) if t.requires_grad]
    if leaves:
        torch.autograd.backward(leaves)


def modules():
    images = torch.randn(4, 3, 8, 8)
    steps = torch.randn(5, 2, 3)
    yield torch.nn.BatchNorm2d(3), images
    yield torch.nn.BatchNorm1d(3), torch.randn(4, 3)
    yield torch.nn.InstanceNorm2d(3, affine=True, track_running_stats=True), images
    yield torch.nn.RReLU(), images
    yield torch.nn.LSTM(3, 4), steps
    yield torch.nn.GRU(3, 4), steps
    yield torch.nn.EmbeddingBag(10, 3, max_norm=1.0), torch.tensor([[1, 2]])


@pytest.mark.parametrize("train", [True, False])
def test_every_module_that_writes_unmarked_is_listed(train):
    with Watch() as watch:
        for module, value in modules():
            out = module.train(train)(value)
            run_backward(out[0] if isinstance(out, tuple) else out)
    assert watch.liars <= verified.unmarked_writers()
    assert not train or "aten::native_batch_norm" in watch.liars, "the check itself sees nothing"


def test_the_witness_sees_what_an_operator_writes_unmarked():
    native = engine.load()
    native.set_witness(True)
    try:
        with memfit.session(None, "ram"):
            torch.nn.BatchNorm2d(3)(torch.randn(4, 3, 8, 8)) + 1
    finally:
        native.set_witness(False)
    seen = native.testimonies()
    assert seen["aten::native_batch_norm"][1] > 0
    assert seen["aten::add.Tensor"][0] > 0 and seen["aten::add.Tensor"][1] == 0


def test_the_list_of_verified_operators_is_in_order_and_has_none_that_writes_unmarked():
    text = verified.HEADER.read_text()
    names = re.findall(r'^    "(.+)",$', text, re.M)
    assert names == sorted(set(names)) and len(names) > 500
    assert not {name.split(".")[0] for name in names} & verified.unmarked_writers()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_operator_that_writes_unmarked_is_listed():
    pytest.importorskip("expecttest", reason="torch's operator samples need it")
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    calls = 0
    with Watch() as watch:
        for op in op_db:
            for dtype in {torch.float32, torch.int64} & set(op.supported_dtypes("cpu")):
                with _disable_current_modes():
                    samples = samples_of(op, dtype)
                for sample in samples:
                    calls += attempt(op, sample) + attempt_in_place(op, sample)
    assert calls > 15000
    assert watch.liars <= verified.unmarked_writers()


def samples_of(op, dtype):
    try:
        grad = dtype.is_floating_point and op.supports_autograd
        return list(op.sample_inputs("cpu", dtype, requires_grad=grad))
    except Exception:  # a sample that this build of torch cannot make
        return []


def attempt(op, sample):
    try:
        run_backward(op(sample.input, *sample.args, **sample.kwargs))
    except Exception:  # an error of the op's own is not what is looked for
        return 0
    return 1


def attempt_in_place(op, sample):
    if op.inplace_variant is None:
        return 0
    try:
        op.inplace_variant(sample.input.detach().clone(), *sample.args, **sample.kwargs)
    except Exception:
        return 0
    return 1
