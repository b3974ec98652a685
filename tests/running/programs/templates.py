"""The lines that a random program is made of, by kind. A hole in one is filled from the tensors alive then:

    {new}     a name not used before            {x}     any tensor
    {f}       a tensor of floats                {b}     one of the same shape as the last (or a number)
    {leaf}    a leaf that requires grad         {g}     the result of an op that requires grad
    {last}    the last tensor named             {o}     one without grad, to be written to
    {shape}   a small shape                     {n}     a small number
    {s:2,3}   an expression of shape (2, 3) on a tensor alive
    {c}       a composite tensor: sparse, nested or quantized

A line that stands here twice is drawn twice as often.
"""

from __future__ import annotations

CREATE = """
{new} = torch.randn({shape})
{new} = torch.randn({shape})
{new} = torch.randn({shape}, requires_grad=True)
{new} = torch.randn({shape}, requires_grad=True)
{new} = torch.nn.Parameter({f}.detach().clone())
{new} = torch.rand({shape}, dtype=torch.float64)
{new} = torch.arange({n}, dtype=torch.float32)
{new} = torch.zeros({shape})
{new} = torch.tensor([{n}.5, -{n}.0, 0.25])
{new} = torch.empty({shape}).fill_({n})
{new} = torch.randint(0, 5, ({shape},))
{new} = torch.full_like({f}, {n})
{new} = torch.empty_like({f}).copy_({last})
{new} = torch.from_numpy(np.arange({n}, dtype=np.float32))
"""
VIEWS = """
{new} = {x}[1:]
{new} = {x}[..., ::2]
{new} = {x}.transpose(0, -1)
{new} = {x}.reshape(-1)
{new} = {x}.flatten().unfold(0, 3, 2)
{new} = {x}.unsqueeze(0).expand(3, *{last}.shape)
{new} = {x}.select(0, 0)
{new}, {new} = {x}.chunk(2)
{new} = {x}.split(2)[-1]
{new} = {x}.view(torch.uint8)
{new} = {f}.detach()
{new} = {f}.data
{new} = {x}.as_strided((2, 2), (1, 2))
{new} = torch.empty(0, dtype={x}.dtype).set_({last}.untyped_storage())
"""
IN_PLACE = """
{f}.add_({b})
{f}.mul_(1.5)
{f}.copy_({b})
{f}.detach().copy_({b})
{f}.zero_()
{f} += {b}
{f}[...] = {b}
{f}[0] = 3.25
{f}.index_put_((torch.tensor([0]),), torch.tensor(2.5))
{f}.masked_fill_({last} > 0, -1)
{f}.data.reshape(-1).scatter_add_(0, torch.tensor([0, 1]), torch.tensor([0.5, 1.5]))
{f}.data.index_add_(0, torch.tensor([0]), {last}.detach()[:1].clone())
{f}.clamp_(-2, 2)
{f}.relu_()
{f}.normal_()
{f}.data.bernoulli_(0.5)
{f}.detach().transpose(0, -1).add_(1)
with torch.no_grad(): {f}.sub_({b}, alpha=0.1)
with torch.no_grad(): {leaf}.add_({b})
torch._foreach_mul_([{f}.detach(), {f}.detach()], 0.5)
torch._foreach_add_([{f}.detach()], [{b}])
torch.add({f}.detach(), {b}, out={o})
torch.mul({f}.detach(), 2, out={o})
torch.mm({s:3,4}.detach(), {s:4,3}.detach(), out={o})
"""
STORAGES = """
{o}.resize_({n}).fill_(1)
{o}.resize_({n}, {n}).fill_(2)
{o}.set_({f}.detach().clone())
{o}.set_({f}.detach())
{f}.data = {last}.detach().clone()
{f}.untyped_storage().fill_(1)
{f}.untyped_storage()[0] = 7
rebuild({f})
"""
OPS = """
{new} = {f}.clone()
{new} = {f} * {b}
{new} = {f} + 1
{new} = torch.cat([{f}.flatten(), {f}.flatten()])
{new} = torch.stack([{f}, {last} * 2])
{new} = torch.mm({s:4,6}, {s:6,3})
{new} = torch.bmm({s:2,3,4}, {s:2,4,3})
{new} = torch.einsum('ij,kj->ik', {s:4,6}, {s:5,6})
{new} = F.linear({s:5,8}, {s:4,8}, {s:4})
{new} = F.conv2d({s:2,2,6,6}, {s:3,2,3,3}, {s:3}, padding=1)
{new} = F.conv_transpose2d({s:1,2,4,4}, {s:2,3,3,3}, stride=2)
{new} = F.batch_norm({s:4,3,5}, {s:3}.detach(), {s:3}.detach(), {s:3}, {s:3}, training=True)
{new} = F.instance_norm({s:4,3,5}, {s:3}.detach(), {s:3}.detach(), use_input_stats=True)
{new} = F.layer_norm({s:4,6}, (6,), {s:6}, {s:6})
{new} = F.max_pool2d({s:1,2,6,6}, 2)
{new} = F.scaled_dot_product_attention({s:1,2,4,8}, {s:1,2,4,8}, {s:1,2,4,8})
{new} = F.cross_entropy({s:4,5}, torch.tensor([0, 1, 4, 2]))
{new} = F.embedding(torch.tensor([0, 2, 2, 1]), {s:4,5})
{new} = F.embedding_bag(torch.tensor([0, 2, 2, 1]), {s:4,5}, torch.tensor([0, 2]))
{new} = torch.nn.LSTM(6, 4)({s:3,2,6})[0]
{new} = torch.softmax({f}, -1)
{new} = F.dropout({f}, 0.5)
{new} = F.rrelu({f}, training=True)
{new} = F.gelu({f})
{new} = {f}.tanh()
{new} = {f}.exp()
{new} = {f}.sum(0)
{new} = {f}.mean()
{new} = {f}.var(-1)
{new}, {new} = {f}.sort(-1)
{new}, {new} = {f}.topk(1)
{new} = {f}.cumsum(-1)
{new} = {f}.unique()
{new} = {f}.nonzero()
{new} = {f}[{last} > 0]
{new} = torch.where({f} > 0, {last}, {b})
{new} = {f}.to(torch.float64)
{new} = {f}.bfloat16().float()
{new} = {f}.to_sparse().to_dense()
{new} = torch.fft.rfft({f}.flatten()).abs()
{new} = torch.linalg.qr({s:4,4})[0]
{new}, {new} = torch._foreach_add([{f}, {f}], 1.0)
{new} = torch._foreach_norm([{f}, {f}])[1]
{new} = torch.utils.checkpoint.checkpoint(torch.sin, {f}, use_reentrant=False)
with torch.no_grad(): {new} = {f} * 2
with torch.autograd.graph.save_on_cpu(): {new} = {f} * {b}
"""
AUTOGRAD = """
{g}.sum().backward()
{g}.sum().backward(retain_graph=True)
{g}.pow(2).mean().backward(retain_graph=True)
{new}, = torch.autograd.grad({g}.sum(), {leaf}, create_graph=True, allow_unused=True)
{new}, = torch.autograd.grad({g}.pow(2).sum(), {leaf}, retain_graph=True, allow_unused=True)
{new} = {leaf}.grad.detach()
{leaf}.grad = None
{leaf}.grad = {last}.detach() * 0.5
{new} = hooked({g})
{new} = hooked({leaf})
{g}.detach_()
{leaf}.requires_grad_(False)
{leaf}.grad = {last}.detach() * 0.5; optimizer = torch.optim.Adam([{last}], lr=0.01, foreach=True); step(optimizer)
{leaf}.grad = {last}.detach() * 0.5; optimizer = torch.optim.SGD([{last}], lr=0.1, momentum=0.9); step(optimizer)
{leaf}.grad = {last}.detach() * 0.5; optimizer = torch.optim.AdamW([{last}], lr=0.01, fused=True); step(optimizer)
step(optimizer)
optimizer.zero_grad()
"""
READS = """
read({f}.sum().item())
read({x}.tolist())
read({x}.detach().numpy().tobytes())
read(np.asarray({x}.detach()).tobytes())
read(bool(({f} > 0).any()))
read(repr({x}))
read(torch.equal({f}, {last} + 0))
read([float(value) for value in {f}.flatten()[:4]])
read({x}.untyped_storage().tolist()[:8])
read({x}.untyped_storage().nbytes())
a = {f}.detach().numpy(); a += 1; del a
array = {f}.detach().numpy()
array = {f}.detach().numpy(); array *= 0.5
{new} = copy.deepcopy({x})
{new} = pickle.loads(pickle.dumps({x}))
{new} = torch.load(saved({x}))
{new} = torch.from_dlpack({x}.detach()).clone()
torch.from_dlpack({f}.detach()).mul_(2)
{new} = torch.from_numpy({x}.detach().numpy().copy())
share({x})
state = torch.get_rng_state()
torch.set_rng_state(state)
"""
COMPOSITES = """
{new} = {f}.to_sparse()
{new} = {s:4,6}.to_sparse_csr()
{new} = {s:4,6}.to_sparse_csc()
{new} = {s:4,6}.to_sparse_bsr((2, 2))
{new} = {s:4,6}.to_sparse_bsc((2, 3))
{new} = torch.nested.as_nested_tensor([{s:3,4}, {s:2,4}])
{new} = torch.nested.nested_tensor([{s:3,4}.detach(), {s:1,4}.detach()], requires_grad=True)
{new} = torch.nested.nested_tensor([{s:3,4}.detach(), {s:2,4}.detach()], layout=torch.jagged)
{new} = torch.quantize_per_tensor({f}.detach(), 0.1, 3, torch.qint8)
{new} = torch.quantize_per_channel({s:4,6}.detach(), torch.rand(4) + 0.1, torch.arange(4), 0, torch.quint8)
{new} = {c}.clone()
{new} = {c} * 2
{new} = {c} + {last}
{new} = {c}.detach()
{c}.detach().mul_(0.5)
{c}.detach().copy_({last})
{new} = {c}.transpose(-1, -2)
{new} = {c} @ {s:6,3}
{new} = torch.softmax({c}, -1)
{new} = F.linear({c}, {s:3,4})
{new} = dense({c})
{new} = dense({c})
dense({c}).sum().backward()
{new} = {c}.coalesce()
{new} = {c}.values()
{new} = copy.deepcopy({c})
{new} = torch.load(saved({c}), weights_only=False)
read(repr(dense({c})))
read({c}.size(0))
{c}.requires_grad_()
del {c}
"""
COMPOUND = """
{new} = packed(torch.nn.LSTM(6, 4), {s:3,2,6})
{new} = packed(torch.nn.GRU(6, 4, bidirectional=True), {s:3,2,6})
{new} = torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x * 2, 0.5).tanh(), {f}, use_reentrant=False)
{new} = torch.utils.checkpoint.checkpoint(lambda x: F.rrelu(x, training=True) * x, {g}, use_reentrant=True)
{new} = torch.func.vmap(lambda row: (row * 2).addcmul_(row, row))({s:4,6}.detach())
{new} = torch.func.vmap(lambda row: row.addcmul_(row, row), randomness='same')({s:4,6})
{new} = torch.autograd.functional.jacobian(lambda x: x.exp() * x, {s:4}.detach(), vectorize=True)
{new} = torch.func.jacrev(torch.func.jacrev(lambda x: (x ** 3).sum()))({s:4}.detach())
{new} = torch.func.jvp(torch.sin, ({s:4,6}.detach(),), ({s:4,6}.detach(),))[1]
{new} = torch.complex({f}.detach().float(), {last}.detach().float() + 1)
{new} = torch.view_as_complex({s:4,6,2})
{new} = torch.fft.fft({f}.flatten())
{new} = ({f} + 2j * {last}).conj()
{new} = ({f} * 1j).conj().imag
{new} = torch.view_as_real({f} * 1j)
{new} = scripted({f}.detach())
breaks({f})
breaks({g})
Breaks.apply({g} * 2).sum().backward()
read(forked({x}))
worker = Worker({s:4,6}.detach().clone())
worker = Worker({s:16,24}.detach().clone())
read(worker.result())
"""
DELETES = """
del {x}
del {x}
del {x}, {x}
gc.collect()
"""

GROUPS = {
    name: text.strip().splitlines()
    for name, text in {
        "create": CREATE, "views": VIEWS, "in_place": IN_PLACE, "storages": STORAGES, "ops": OPS,
        "autograd": AUTOGRAD, "reads": READS, "deletes": DELETES,
        "composites": COMPOSITES, "compound": COMPOUND,
    }.items()
}  # fmt: skip
SHAPES = ("3", "17", "300", "4, 6", "6, 4", "16, 24", "2, 3, 5", "2, 2, 6, 6", "1, 40")
