"""Every storage that an op reads or writes is known to the engine, however it is wrapped or called.

Each program runs plainly, and with everything that may move pressed out or moved before every op.
"""

import pytest
import torch
from torch import nn

from memfit import session
from running.stress import compare


@pytest.fixture(params=compare.STRESSES)
def stressed(request):
    with compare.stressed(request.param):
        yield request.param


def in_place_of_a_batched_gradient():
    class Doubles(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.clone().addcmul_(gradient, gradient, value=2.0)

    x = torch.arange(8.0, requires_grad=True)
    rows = torch.eye(8)
    return torch.autograd.grad(Doubles.apply(x), x, rows, is_grads_batched=True)[0]


def in_place_under_vmap_without_a_rule():
    x = torch.arange(64.0).reshape(8, 8) + 1
    torch.func.vmap(lambda row: row.addcmul_(row, row, value=2))(x)
    return x * 1


def nested_jacobians():
    return torch.func.jacrev(torch.func.jacrev(lambda x: (x**3).sum()))(torch.arange(3.0))


def in_place_of_torchscript():
    @torch.jit.script
    def scripted(a: torch.Tensor, b: torch.Tensor):
        for _ in range(3):
            a.add_(b)
            b = b * 2
        return a, b

    return torch.cat([t.reshape(-1) for t in scripted(torch.ones(16), torch.ones(16))])


def lengths_of_a_packed_sequence(kind):
    torch.manual_seed(0)
    network, x = kind(6, 8, num_layers=2, bidirectional=True), torch.randn(5, 4, 6, requires_grad=True)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3, 2, 1]))
    out, lengths = nn.utils.rnn.pad_packed_sequence(network(packed)[0])
    (out * lengths[None, :, None]).sum().backward()
    return torch.cat([out.reshape(-1), x.grad.reshape(-1)])


def sizes_of_a_nested_tensor():
    parts = [torch.arange(float(n * 4)).reshape(n, 4).requires_grad_() for n in (3, 1, 5)]
    nested = torch.nested.as_nested_tensor(parts) * 2
    assert nested.size(0) == 3
    unused = nested.detach() * 2
    torch.ones(64) * 2
    assert unused.size(0) == 3
    padded = torch.nested.to_padded_tensor(nested.softmax(-1), 0.0)
    (padded * torch.arange(4)).sum().backward()
    return torch.cat([padded.reshape(-1), *(part.grad.reshape(-1) for part in parts)])


def members_of_compressed_tensors(layout):
    torch.manual_seed(0)
    dense = torch.randn(16, 16) * (torch.rand(16, 16) > 0.5)
    block = {"blocksize": (4, 4)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    compressed = dense.to_sparse(layout=layout, **block)
    return torch.cat([(compressed * 3).to_dense(), compressed.to_dense() @ torch.ones(16, 2)], 1)


def indices_that_a_view_is_split_at():
    return torch.cat([part * i for i, part in enumerate(torch.tensor_split(torch.arange(9.0), torch.tensor([2, 6])))])


def sparse_rows_under_vmap():
    x = torch.eye(4).to_sparse()
    return torch.func.vmap(lambda row: row * 2)(torch.stack([x, x])).to_dense()


def numbers_of_a_conjugate(read):
    lazy = (torch.arange(8.0) * (1 + 2j)).conj()
    seen = [read(lazy), read(lazy.imag)]
    for value in range(3):
        torch.full((64,), value) * 2
    return torch.cat([torch.tensor(values).to(torch.complex64) for values in seen])


def scales_of_a_quantized_tensor():
    scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3])
    quantized = torch.quantize_per_channel(torch.randn(3, 8).fill_(1.5), scales, zeros, 0, torch.qint8)
    torch.ones(64) * 2
    return quantized.clone().dequantize()


def what_a_packed_weight_holds():
    linear = torch.ao.nn.quantized.dynamic.Linear(8, 4)
    weight = torch.quantize_per_tensor(torch.arange(32.0).reshape(4, 8), 0.5, 0, torch.qint8)
    linear.set_weight_bias(weight, torch.arange(4.0) + 0.0)
    torch.ones(64) * 2
    return linear(torch.ones(2, 8))


LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
PROGRAMS = {
    "batched gradient": in_place_of_a_batched_gradient,
    "vmap": in_place_under_vmap_without_a_rule,
    "jacrev": nested_jacobians,
    "script": in_place_of_torchscript,
    **{kind.__name__: lambda kind=kind: lengths_of_a_packed_sequence(kind) for kind in (nn.LSTM, nn.GRU, nn.RNN)},
    "nested": sizes_of_a_nested_tensor,
    **{str(layout): lambda layout=layout: members_of_compressed_tensors(layout) for layout in LAYOUTS},
    "sparse under vmap": sparse_rows_under_vmap,
    "list of a conjugate": lambda: numbers_of_a_conjugate(torch.Tensor.tolist),
    "array of a conjugate": lambda: numbers_of_a_conjugate(lambda lazy: lazy.numpy(force=True)),
    "split": indices_that_a_view_is_split_at,
    "quantized": scales_of_a_quantized_tensor,
    "packed weight": what_a_packed_weight_holds,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_op_finds_and_keeps_what_it_uses(name, stressed):
    plain = PROGRAMS[name]()
    with session(1 << 26, "ram", device="cpu") as s:
        under_stress = PROGRAMS[name]()
        moved = s.stats.evictions + s.stats.relocations + s.stats.discards
    assert torch.equal(plain, under_stress)
    assert moved > 0 or stressed == "split"  # (of some programs nothing may be)


@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_raises_nothing_where_memory_is_tight(capfd):
    with session(16 << 10, "ram", device="cpu"):
        assert sizes_of_a_nested_tensor().shape[0] > 0
    assert "RecordFunction" not in capfd.readouterr().err
