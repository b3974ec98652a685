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
from running.stress import schemas, verified

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
    """Collects the ops that changed an argument their schema does not mark as written, with its name."""

    def __init__(self):
        super().__init__()
        self.liars: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with _disable_current_modes():
            before, written = self.look(func, args, kwargs)
        out = func(*args, **kwargs)
        with _disable_current_modes():
            for argument, tensor, bytes_before in before:
                after = contents(tensor)
                changed = after is None or after.shape != bytes_before.shape or not torch.equal(after, bytes_before)
                if changed and tensor.untyped_storage()._cdata not in written:
                    self.liars.add((func._schema.name, argument))
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
                    before.append((argument.name, tensor, bytes_now))
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


def run_modules(train):
    for module, value in modules():
        out = module.train(train)(value)
        run_backward(out[0] if isinstance(out, tuple) else out)


def listed():
    return {(name, argument) for name, written in verified.unmarked_writes().items() for argument in written}


@pytest.mark.parametrize("train", [True, False])
def test_every_argument_that_a_module_writes_to_unmarked_is_listed(train):
    with Watch() as watch:
        run_modules(train)
    assert watch.liars <= listed()
    assert not train or ("aten::native_batch_norm", "running_var") in watch.liars, "the check itself sees nothing"


LIBRARY = torch.library.Library("memfit_tests", "DEF")
LIBRARY.define("quietly_double(Tensor x) -> Tensor")


def double_quietly(x: torch.Tensor) -> torch.Tensor:
    x.detach().mul_(2)
    return x + 0


LIBRARY.impl("quietly_double", double_quietly, "CPU")


def seen_by_the_witness(work):
    native = engine.load()
    native.set_witness(True)
    try:
        with memfit.session(None, "ram"):
            work()
    finally:
        native.set_witness(False)
    return native.testimonies()


def test_the_witness_sees_what_an_operator_writes_unmarked():
    seen = seen_by_the_witness(lambda: torch.ops.memfit_tests.quietly_double(torch.ones(4)) + 1)
    calls, changed, written = seen["memfit_tests::quietly_double"]
    assert calls == changed > 0 and written == {"x"}
    assert seen["aten::add.Tensor"][0] > 0 and seen["aten::add.Tensor"][1] == 0


def test_operators_write_to_all_the_arguments_that_they_are_listed_with_and_no_others():
    def work():
        run_modules(train=True)
        mean, var, x = torch.zeros(3), torch.ones(3), torch.randn(4, 3, 8, 8)
        torch.batch_norm_update_stats(x, mean, var, 0.1)
        torch.ops.aten.rrelu_with_noise(x, torch.empty_like(x), 0.1, 0.3, True)

    seen = seen_by_the_witness(work)
    tried = {name: seen[name] for name in verified.unmarked_writes() if name in seen}
    assert {name: written for name, (_, _, written) in tried.items()} == {
        name: verified.unmarked_writes()[name] for name in tried
    }
    assert not any(changed for _, changed, _ in tried.values())
    assert len(tried) >= 6


def test_the_list_of_verified_operators_is_in_order_and_has_those_whose_unmarked_writes_are_listed():
    text = verified.HEADER.read_text()
    names = re.findall(r'^    "(.+)",$', text, re.M)
    assert names == sorted(set(names)) and len(names) > 500
    assert {"aten::batch_norm", "aten::native_batch_norm", "aten::mkldnn_rnn_layer"} <= {*names}


def test_the_witness_sees_which_composites_write_something_themselves():
    def work():
        for name in schemas.OWN:
            for sample in schemas.samples(name):
                sample.parts["call"]()
        run_modules(train=True)

    native = engine.load()
    seen_by_the_witness(work)
    found = native.composites()
    for name in ("draw", "initialize_state_", "scramble_"):
        calls, opaque = found[f"aten::_sobol_engine_{name}"]
        assert calls == opaque > 0, name
    assert found["aten::batch_norm"][0] > 0 and found["aten::batch_norm"][1] == 0


def test_the_list_of_transparent_composites_is_in_order_and_has_what_networks_call():
    names = re.findall(r'^    "(.+)",$', verified.COMPOSITES.read_text(), re.M)
    assert names == sorted(set(names)) and len(names) > 300
    assert {"aten::linear", "aten::conv2d", "aten::batch_norm", "aten::dropout", "aten::matmul", "aten::reshape"} <= {
        *names
    }
    assert not [name for name in names if "sobol" in name and name != "aten::_sobol_engine_ff_"]


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
    assert watch.liars <= listed()


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
