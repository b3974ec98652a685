"""A recording without values counts what one with values counts, whoever makes the tensors."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cli.helpers_cli import line_of
from memfit.ir import Trace
from memfit.planning.autoswap import smallest_budget
from memfit.running.scripts.ghostly import record
from memfit.running.scripts.record import record_script
from memfit.running.scripts.without_values import Request
from memfit.simulate import load_bytes

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def this_process(monkeypatch, tmp_path) -> None:
    """What a program changes is put back."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)


# Each makes 64 KiB or more.
FACTORIES = {
    "arange": "torch.arange(65536.)",
    "bartlett_window": "torch.bartlett_window(65536)",
    "blackman_window": "torch.blackman_window(65536)",
    "empty": "torch.empty(256, 256)",
    "empty_permuted": "torch.empty_permuted((256, 256), (1, 0))",
    "empty_strided": "torch.empty_strided((256, 256), (256, 1))",
    "eye": "torch.eye(256, device=weight.device)",
    "full": "torch.full((256, 256), 2.0, dtype=weight.dtype)",
    "hamming_window": "torch.hamming_window(65536)",
    "hann_window": "torch.hann_window(65536)",
    "kaiser_window": "torch.kaiser_window(65536)",
    "linspace": "torch.linspace(0, 1, 65536)",
    "logspace": "torch.logspace(0, 1, 65536)",
    "normal": "torch.normal(0.0, 1.0, (256, 256))",
    "ones": "torch.ones(256, 256, device=weight.device)",
    "rand": "torch.rand(256, 256)",
    "randint": "torch.randint(0, 9, (128, 256))",
    "randn": "torch.randn(256, 256, generator=torch.Generator().manual_seed(1))",
    "randperm": "torch.randperm(32768)",
    "range": "torch.range(0, 65535)",
    "scalar_tensor": "torch.scalar_tensor(2.0).expand(256, 256).clone()",
    "sparse_coo_tensor": "torch.sparse_coo_tensor(torch.arange(21845).expand(1, -1), torch.ones(21845), (30000,))",
    "tril_indices": "torch.tril_indices(181, 181)",
    "triu_indices": "torch.triu_indices(181, 181)",
    "zeros": "torch.zeros(256, 256, device=weight.device)",
    "empty_like": "torch.empty_like(like)",
    "full_like": "torch.full_like(like, 2.0)",
    "ones_like": "torch.ones_like(like)",
    "rand_like": "torch.rand_like(like)",
    "randint_like": "torch.randint_like(like, 9)",
    "randn_like": "torch.randn_like(like)",
    "zeros_like": "torch.zeros_like(like)",
    "new_empty": "weight.new_empty(256, 256)",
    "new_empty_strided": "like.new_empty_strided((256, 256), (256, 1))",
    "new_full": "weight.new_full((256, 256), 1.0)",
    "new_ones": "like.new_ones((256, 256))",
    "new_zeros": "like.new_zeros((256, 256))",
    "to": "like.to(torch.float32, copy=True)",
    "tensor": "torch.tensor([1.0] * 16384)",
    "as_tensor": "torch.as_tensor([1.0] * 16384)",
    "new_tensor": "weight.new_tensor([1.0] * 16384)",
    "a class": "torch.FloatTensor(256, 256)",
    "a default device": "with_default_device()",
    "a mask": "like > 0.5",
    "a sum of data": "like.sum(0).expand(256, 256).contiguous()",
    "a gradient's shape": "torch.zeros(4, *weight.grad.shape, 16) if weight.grad is not None else like",
}
_NOT_MEMORY = {
    "_cudnn_init_dropout_state", "_efficientzerotensor", "_empty_affine_quantized", "_make_dep_token", "from_file"
}  # fmt: skip

PROGRAM = """
import torch

def with_default_device():
    with torch.device("cpu"):
        return torch.zeros(256, 256)

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
weight = model[0].weight
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
like = torch.rand(256, 256)
sums = torch.zeros(4, 64, 64)
HOOK
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(64, 64)).sum().backward()
    made = MADE
    USE
    optimizer.step()
    del made
"""

USES = {
    "nothing else": ("", "pass"),
    "other data": ("", "more = made + made; del more"),
    "an attribute, as of per-sample gradients": ("", "weight.grad_sample = made"),
    "an op with a weight": ("", "more = made[..., :64] * weight.detach()[0]; more = made.sum(-1); del more"),
    "writing from a gradient": (
        "",
        "made[:64, :64].add_(weight.grad); more = torch.einsum('ij,kj->ik', made, made); del more",
    ),  # fmt: skip
    "a scatter, as of an embedding's per-sample gradient": (
        "",
        "made.scatter_add_(0, torch.zeros(64, 64, dtype=torch.long), weight.grad); more = made.t().contiguous()",
    ),
    "a sum that lasts": ("", "sums += weight.grad; sums[0] = weight.grad; more = sums * 2; more = torch.zeros(1)"),
    "a hook's sum": (
        "weight.register_hook(lambda grad: (sums.add_(grad), None)[1])", "more = sums.pow(2); del more"
    ),
    "a hook's per-sample gradients": (
        "model[0].register_full_backward_hook(lambda module, g, out: setattr("
        "module.weight, 'grad_sample', torch.zeros(64, 64, 64, device='cpu').add_(out[0][:, :, None])))",
        "norms = weight.grad_sample.flatten(1).norm(2, 1); "
        "weight.grad = torch.einsum('i,i...', norms, weight.grad_sample)",
    ),
    "views of one data set": (
        "", "more = [torch.add(part, weight[0, 0].detach()) for part in like.split(64)]; del more"
    ),
}  # fmt: skip


def both(folder: Path, text: str) -> tuple[Trace, Trace]:
    """The recordings of a program with values, and without."""
    script = folder / "s.py"
    script.write_text(text)
    request = Request(str(script), [], str(folder / "t.json"))
    return alone(lambda: record_script(str(script), [], "never")), alone(lambda: record(request))


def alone(recording: Callable[[], Trace]) -> Trace:
    """What the call returns; nothing of its program is left for the next one."""
    try:
        return recording()
    finally:
        vars(sys.modules["__main__"]).clear()
        gc.collect()


def program(made: str, use: str) -> str:
    hook, use = USES[use]
    return PROGRAM.replace("MADE", FACTORIES[made]).replace("HOOK", hook).replace("USE", use)


def figures(trace: Trace) -> tuple[int, int]:
    return int(load_bytes(trace).max()), smallest_budget(trace)[0]


def test_every_factory_of_torchs_is_in_the_table():
    """A factory takes a device, and makes a tensor of numbers, or one like another tensor."""
    for name in {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}:
        if not hasattr(torch, name) or name in _NOT_MEMORY:
            continue
        for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
            kinds = {argument.name: str(argument.type) for argument in schema.arguments}
            if "device" in kinds and "Tensor" not in "".join(kinds.values()):
                assert name in FACTORIES, name


def bytes_by_line(trace: Trace) -> Counter[str]:
    """The bytes that each line of the program allocates in the iteration."""
    made: Counter[str] = Counter()
    for storage in trace.storages:
        if not storage.born_before:
            made[storage.source.rpartition(":")[2]] += storage.size_bytes
    return made


def test_what_each_factory_makes_is_counted_as_in_a_recording_with_values(tmp_path):
    lines = "".join(f"made = {made}; more = made.clone(); del more\n    " for made in FACTORIES.values())
    text = program("zeros", "nothing else").replace("made = torch.zeros(256, 256, device=weight.device)", lines)
    with_values, without = both(tmp_path, text)
    numbers = {made: str(line_of(text, f"made = {text_of}; more")) for made, text_of in FACTORIES.items()}
    seen, expected = bytes_by_line(without), bytes_by_line(with_values)
    for made, line in numbers.items():
        assert seen[line] == expected[line] > 100_000, made
    assert figures(without)[0] == pytest.approx(figures(with_values)[0], rel=0.02)


@pytest.mark.parametrize("use", USES)
def test_what_becomes_of_it_is_counted_as_in_a_recording_with_values(tmp_path, use):
    with_values, without = both(tmp_path, program("zeros", use))
    for mine, other in zip(figures(without), figures(with_values), strict=True):
        assert mine == pytest.approx(other, rel=0.05)


ON_A_DEVICE = """
import torch
data = torch.randn(4096, 256)
model = torch.nn.Linear(256, 4).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    batch = data[64 * step : 64 * (step + 1)].to(DEVICE)
    noise = torch.zeros(64, 256, device=DEVICE)
    model(batch + noise).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("device", "least"), [("cpu", 4096 * 1024), ("cuda", 3 * 64 * 1024)])
def test_data_that_is_not_on_the_device_is_counted_as_it_gets_there(tmp_path, device, least):
    script = tmp_path / "s.py"
    script.write_text(ON_A_DEVICE.replace("DEVICE", repr(device)))
    trace = alone(lambda: record(Request(str(script), [], str(tmp_path / "t.json"))))
    assert least <= figures(trace)[0] < least + 5 * 64 * 1024
