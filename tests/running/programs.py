"""Random straight-line torch programs: written as source while they run plainly, then run again as they stand.

A program is a list of lines of Python, so that what falsifies a test can be pasted into a file and run. Each
step of a hypothesis draw chooses a template below and a seed that fills its holes from the tensors alive then:

    {new}     a name not used before            {x}     any tensor
    {f}       a tensor of floats                {b}     one of the same shape as the last (or a number)
    {leaf}    a leaf that requires grad         {g}     the result of an op that requires grad
    {last}    the last tensor named             {o}     one without grad, to be written to
    {shape}   a small shape                     {n}     a small number
    {s:2,3}   an expression of shape (2, 3) on a tensor alive
    {c}       a composite tensor: sparse, nested or quantized
"""

from __future__ import annotations

import copy
import gc
import hashlib
import io
import math
import os
import pickle
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from memfit.errors import MemfitError
from running.stress.seen import rows

MOST_ELEMENTS = 4096

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

Reader = Callable[[torch.UntypedStorage], bytes]


def read_plainly(storage: torch.UntypedStorage) -> bytes:
    """Return the bytes of a storage in ordinary memory."""
    ordinary = storage.cpu()
    return np.array(torch.empty(0, dtype=torch.uint8, device="cpu").set_(ordinary).numpy()).tobytes()


def contents(tensor: torch.Tensor, read: Reader) -> tuple[str, tuple[int, ...], bool, bytes]:
    """Return all that can be seen of a tensor, its elements in order, without an op on it."""
    size = tensor.element_size()
    if tensor.numel() == 0:
        elements = b""
    else:
        strides = [*(stride * size for stride in tensor.stride()), 1]
        whole = np.frombuffer(read(tensor.untyped_storage()), np.uint8)
        shape = (*tensor.shape, size)
        elements = np.ndarray(shape, np.uint8, whole, tensor.storage_offset() * size, strides).tobytes()
    return str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad, elements


def _is_composite(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is more than elements in one storage."""
    return tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view of several that was written to through another: torch refuses it
        return False


def _saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


# Plain torch would go out of bounds or use freed memory in the cases that these refuse.
def _may_grow(tensor: torch.Tensor) -> bool:
    storage = tensor.untyped_storage()
    return storage.resizable() and not storage.is_shared()


def _rebuild(tensor: torch.Tensor) -> None:
    """Give the storage new memory of the same size, zero but for the tensor."""
    if not _may_grow(tensor):
        raise ValueError("its memory is not torch's own")
    before, storage = tensor.detach().clone(), tensor.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
    tensor.detach().copy_(before)


def _hooked(tensor: torch.Tensor) -> torch.Tensor:
    result = tensor * 2
    result.register_hook(lambda gradient: gradient + 1)
    result.retain_grad()
    return result


def _share(tensor: torch.Tensor) -> None:
    if not tensor.untyped_storage().resizable():
        raise ValueError("a numpy array may look at it")
    tensor.share_memory_()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a composite's elements as an ordinary tensor."""
    if tensor.is_nested:
        return torch.nested.to_padded_tensor(tensor, 0.0)
    return tensor.dequantize() if tensor.is_quantized else tensor.to_dense()


def _packed(network: torch.nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
    """Run over sequences of lengths that only a tensor knows."""
    sequences = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
    return torch.nn.utils.rnn.pad_packed_sequence(network(sequences)[0])[0]


def _averaged(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for _ in range(3):
        y.add_(x).mul_(0.5)
    return y


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is on its way out, and in use
    _scripted = torch.jit.script(_averaged)


class _Breaks(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError(str((gradient * 2).sum().item() != 0))


def _breaks(x: torch.Tensor) -> torch.Tensor:
    """Raise in mid-forward, with a graph alive and results on the stack."""
    hidden = torch.tanh(x * 2)
    kept = [hidden.exp(), hidden + 1]
    raise ArithmeticError(len(kept))


def _forked(tensor: torch.Tensor) -> str:
    """Return what a forked child reads of a tensor."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            data = repr(contents(tensor.detach().clone(), read_plainly)).encode()
            os.write(writes, hashlib.sha1(data).hexdigest().encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


class _Worker:
    """Trains a small model in a thread beside the program, without random numbers: their order would be by chance."""

    def __init__(self, x: torch.Tensor) -> None:
        self._x, self._losses = x, []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # noqa: B036
            self._error = error

    def _train(self) -> None:
        x = self._x
        weight = torch.linspace(-1, 1, x.shape[1] * 3).reshape(x.shape[1], 3).requires_grad_()
        for _ in range(4):
            loss = torch.tanh(x @ weight).square().sum()
            weight.grad = None
            loss.backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            self._losses.append(loss.item())

    def result(self) -> list[float]:
        """Return the losses, once all are known; raise what ended the training, as a budget too small for two may."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._losses


def _step(optimizer: torch.optim.Optimizer) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        states = [t for t in optimizer.state.get(parameter, {}).values() if torch.is_tensor(t) and t.dim()]
        if any(t.shape != parameter.shape for t in [*states, parameter.grad] if t is not None):
            raise ValueError("the parameter was resized")
    optimizer.step()


class Run:
    """Runs lines one by one; `seen` is what they read out or raised, by line."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Any]] = []
        self._line = 0
        modules = {"torch": torch, "F": F, "np": np, "copy": copy, "pickle": pickle, "gc": gc}
        helpers = {"saved": _saved, "rebuild": _rebuild, "share": _share, "step": _step, "hooked": _hooked}
        more = {"dense": _dense, "packed": _packed, "scripted": _scripted, "Breaks": _Breaks, "breaks": _breaks}
        beside = {"forked": _forked, "Worker": _Worker}
        self.names: dict[str, Any] = {**modules, **helpers, **more, **beside, "read": self._read}
        torch.manual_seed(0)

    def _read(self, value: Any) -> None:
        self.seen.append((self._line, value if isinstance(value, bytes) else repr(value)))

    def line(self, source: str) -> None:
        """Run one line. Only memfit's own errors are raised; others are part of what is seen."""
        self._line += 1
        try:
            exec(source, self.names)
        except MemfitError:
            raise
        except Exception as error:
            if "memfit" in str(error):
                raise
            self.seen.append((self._line, f"raised {type(error).__name__}"))

    def all(self, lines: Iterable[str]) -> Run:
        """Run every line."""
        for source in lines:
            self.line(source)
        if "worker" in self.names:
            self.names["worker"].result()
        return self

    def tensors(self, composite: bool = False) -> dict[str, torch.Tensor]:
        """Return the tensors alive, by the names the program gave them (not a saved generator state)."""
        tensors = {n: v for n, v in self.names.items() if isinstance(v, torch.Tensor) and n != "state"}
        return {n: t for n, t in tensors.items() if _is_composite(t) == composite}

    def final(self, read: Reader) -> dict[str, Any]:
        """Return the contents of all tensors and gradients."""
        found = {}
        for name, tensor in self.tensors().items():
            leaf = _is_leaf(tensor)  # asked first: where torch refuses, `requires_grad` is another one from then on
            found[name] = contents(tensor, read)
            if leaf and tensor.grad is not None:
                found[f"{name}.grad"] = list(rows(tensor.grad, read))
        for name, tensor in self.tensors(composite=True).items():
            found[name] = list(rows(tensor, read))
        return found


@dataclass
class Writer:
    """Turns steps into lines by running what it has written so far."""

    run: Run = field(default_factory=Run)
    lines: list[str] = field(default_factory=list)
    _names: int = 0
    _last_name: str = ""

    def step(self, template: str, seed: int) -> None:
        """Write and run one line, unless no tensor alive fits it."""
        self._random = random.Random(seed)
        try:
            line = re.sub(r"\{(\w+)(?::([\d,]+))?\}", self._fill, template)
        except LookupError:
            return
        self.lines.append(line)
        self.run.line(line)

    def _fill(self, hole: re.Match[str]) -> str:
        kind, shape = hole.groups()
        return self._shaped(shape) if shape else getattr(self, f"_{kind}")()

    def _choose(self, fits: Callable[[torch.Tensor], bool]) -> str:
        names = [n for n, t in self.run.tensors().items() if t.numel() <= MOST_ELEMENTS and fits(t)]
        self._last_name = self._random.choice(names)  # IndexError, a LookupError, when there is none
        return self._last_name

    def _new(self) -> str:
        self._names += 1
        self._last_name = f"t{self._names}"
        return self._last_name

    def _last(self) -> str:
        return self._last_name

    def _x(self) -> str:
        return self._choose(lambda t: True)

    def _f(self) -> str:
        return self._choose(lambda t: t.is_floating_point() and t.numel() > 0)

    def _c(self) -> str:
        self._last_name = self._random.choice(list(self.run.tensors(composite=True)))
        return self._last_name

    def _o(self) -> str:
        return self._choose(lambda t: t.dtype == torch.float32 and not t.requires_grad and _may_grow(t))

    def _leaf(self) -> str:
        return self._choose(lambda t: t.requires_grad and _is_leaf(t))

    def _g(self) -> str:
        return self._choose(lambda t: t.requires_grad and not _is_leaf(t))

    def _b(self) -> str:
        like, before = self.run.names[self._last_name], self._last_name
        if self._random.random() < 0.2:
            return "0.5"
        other = self._choose(lambda t: t.shape == like.shape and t.is_floating_point())
        self._last_name = before
        return other

    def _shape(self) -> str:
        return self._random.choice(SHAPES)

    def _n(self) -> str:
        return str(self._random.choice((1, 2, 9, 30, 257)))

    def _shaped(self, shape: str) -> str:
        count = math.prod(map(int, shape.split(",")))
        try:
            name = self._choose(lambda t: t.dtype == torch.float32 and t.numel() >= count)
        except LookupError:
            return f"torch.randn({shape})"
        return f"{name}.reshape(-1)[:{count}].reshape({shape})"


@dataclass(frozen=True)
class Program:
    """Lines, and what a plain run of them showed."""

    lines: tuple[str, ...]
    seen: list[tuple[int, Any]]
    final: dict[str, Any]

    def __repr__(self) -> str:
        return "\n".join(["", *(f"{number:3}  {line}" for number, line in enumerate(self.lines, 1))])

    def differences(self, seen: list[tuple[int, Any]], final: dict[str, Any]) -> list[str]:
        """Return where another run of the same lines differs, nothing if it is the same bit for bit."""
        unequal = [f"line {a[0]}: {a[1]!r} became {b!r}" for a, b in zip(self.seen, seen, strict=False) if a != b]
        if len(seen) != len(self.seen):
            unequal.append(f"{len(self.seen)} values were seen, then {len(seen)}")
        if final.keys() != self.final.keys():
            unequal.append(f"other tensors: {sorted(self.final.keys() ^ final.keys())}")
        unequal += [f"{name} is {self.final[name]}, then {value}" for name, value in final.items()
                    if name in self.final and value != self.final[name]]  # fmt: skip
        return unequal[:5]


def write(steps: Iterable[tuple[str, int]]) -> Program:
    """Return the program that `steps` (a template and a seed each) describe."""
    writer = Writer()
    writer.step("{new} = torch.randn(4, 6)", 0)
    for template, seed in steps:
        writer.step(template, seed)
    run = Run().all(writer.lines)  # as in a session: the writer has asked the tensors for more meanwhile
    return Program(tuple(writer.lines), run.seen, run.final(read_plainly))
