"""Training a model for some steps, plainly or in another way to spend less memory on activations.

Each step is timed; the bits of each loss are kept, and a fingerprint of the weights can be taken.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from benchmarks.common.result import Row
from benchmarks.gpu.accelerator import ms_between, now, synchronize
from benchmarks.gpu.models import Spec, blocks, example, loss_of
from benchmarks.gpu.virtual import is_simulated

MOST_STEPS = 64
_SEED = 20240817
CHUNK = 1 << 22  # elements that a fingerprint looks at at a time, each 8 bytes and some times over
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FACTORS = (0x2545F4914F6CDD1D, 0x5851F42D4C957F2D)
_SHARE = 0.5  # of the activations that torch.compile may keep
MODES = {
    "plain": "plain",
    "expandable": "plain, expandable segments",
    "checkpoint": "checkpoint per block",
    "selective": "selective checkpointing",
    "save_on_cpu": "save_on_cpu(pin_memory=True)",
    "compile": f"compile per block, activation_memory_budget={_SHARE}",
    "compile_whole": f"compile, activation_memory_budget={_SHARE}",
}


class Training:
    """A model with its optimizer and batch, on the device. Equal seeds and modes give equal bits, if the kernels do."""

    def __init__(self, spec: Spec, device: torch.device, mode: str = "plain") -> None:
        torch.manual_seed(_SEED)
        self.spec, self.device, self.mode = spec, device, mode
        self.model = _built(spec, device)
        _change(mode, self.model)
        self.inputs, self.labels = example(spec, device)
        self.optimizer = _optimizer(spec, self.model, device)
        self.losses = torch.zeros(MOST_STEPS, device=device)
        self.steps: list[tuple[Any, Any, Any, Any]] = []

    def step(self) -> None:
        """Train one step, and note when its forward, backward and optimizer began and ended."""
        begin = now(self.device)
        with _forward(self.mode), self._cast():
            loss = loss_of(self.spec, self.model, self.inputs, self.labels)
        forward = now(self.device)
        loss.backward()
        backward = now(self.device)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses[len(self.steps) % MOST_STEPS].copy_(loss.detach())
        self.steps.append((begin, forward, backward, now(self.device)))

    def train(self, steps: int) -> Training:
        """Train so many steps; return itself."""
        for _ in range(steps):
            self.step()
        return self

    def _cast(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.spec.half else torch.autocast(self.device.type, torch.bfloat16)

    def times_ms(self) -> list[dict[str, float]]:
        """Return each step's milliseconds, whole and in parts; waits for the device."""
        synchronize(self.device)
        parts = (("step", 0, 3), ("forward", 0, 1), ("backward", 1, 2), ("optimizer", 2, 3))
        return [{part: ms_between(step[begin], step[end]) for part, begin, end in parts} for step in self.steps]

    def period_ms(self, count: int) -> float:
        """Return the milliseconds from one step's begin to the next one's, over the last steps: nothing is left out."""
        last = self.steps[-count:]
        return ms_between(last[0][0], last[-1][3]) / len(last)

    def loss_bits(self) -> list[str]:
        """Return the bits of each loss."""
        host = self.losses.detach().cpu()
        return [f"{value & 0xFFFFFFFF:08x}" for value in host.view(torch.int32).tolist()[: len(self.steps)]]

    def fingerprint(self, chunk: int = CHUNK) -> str:
        """Return a fingerprint of all weights and buffers."""
        return fingerprint([*self.model.parameters(), *self.model.buffers()], chunk)


def _built(spec: Spec, device: torch.device) -> nn.Module:
    torch.set_default_dtype(torch.bfloat16 if spec.half else torch.float32)
    try:
        with device:
            model = spec.build()
    finally:
        torch.set_default_dtype(torch.float32)
    if not spec.text and device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.train()


def _change(mode: str, model: nn.Module) -> None:
    """Change the model as the mode's user would."""
    if mode in ("checkpoint", "selective"):
        options: Row = {"context_fn": _keeping} if mode == "selective" else {}
        for layer in model.modules():
            if isinstance(layer, nn.ReLU) and mode == "selective":
                layer.inplace = False  # what is kept may not be overwritten: its user would have to change this too
        for block in blocks(model):
            recomputed = functools.partial(checkpoint.checkpoint, block.forward, use_reentrant=False, **options)
            block.forward = recomputed
    elif mode in ("compile", "compile_whole"):
        torch._functorch.config.activation_memory_budget = _SHARE
        for block in blocks(model) if mode == "compile" else [model]:
            block.compile()
    elif mode not in MODES:
        raise ValueError(f"there is no mode {mode}")


def _forward(mode: str) -> AbstractContextManager[Any]:
    """Return what the forward pass runs in."""
    if mode != "save_on_cpu":
        return nullcontext()
    return torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available())


def _keeping() -> Any:
    """Keep products, convolutions and attention: what costs most to compute again."""
    aten = torch.ops.aten
    names = ("mm", "addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention",
             "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention",
             "_scaled_dot_product_flash_attention_for_cpu")  # fmt: skip
    kept = [getattr(aten, name).default for name in names if hasattr(aten, name)]
    return checkpoint.create_selective_checkpoint_contexts(kept)


def _optimizer(spec: Spec, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    if spec.text:
        fused = device.type != "meta"
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)


@torch.no_grad()
def fingerprint(tensors: Iterable[Tensor], chunk: int = CHUNK) -> str:
    """Return 128 bits that depend on every bit of the tensors, computed on their device in any order of the sums.

    Sums of integers, which wrap, do not depend on their order, as sums of floats do. Each element is multiplied by an
    odd number of its position, so that no change of one element goes unseen.
    """
    if is_simulated():  # there are no values
        return ""
    totals = [0, 0]
    whole: list[Tensor] = []
    for tensor in tensors:
        bits = tensor.detach().contiguous().view(_BITS[tensor.element_size()]).flatten()
        total = torch.zeros(2, dtype=torch.int64, device=bits.device)
        for at in range(0, bits.numel(), chunk):
            total += _sums(bits[at : at + chunk], at)
        whole.append(total)
    for row in torch.stack(whole).cpu().tolist() if whole else []:
        totals = [(total * 0x100000001B3 + value) % (1 << 64) for total, value in zip(totals, row, strict=True)]
    return "".join(f"{total:016x}" for total in totals)


def _sums(bits: Tensor, first: int) -> Tensor:
    places = torch.arange(first, first + bits.numel(), device=bits.device, dtype=torch.int64)
    values = bits.to(torch.int64)
    return torch.stack([(values * ((places * factor) ^ (places >> 7)).bitwise_or_(1)).sum() for factor in _FACTORS])


def median_ms(times: list[dict[str, float]], count: int) -> dict[str, float]:
    """Return the median of the last `count` steps, by part."""
    last = times[-count:]
    return {part: statistics.median(time[part] for time in last) for part in last[0]} if last else {}
