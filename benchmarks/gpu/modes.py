"""The other ways to spend less memory on activations, put around a model that knows nothing of them."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from benchmarks.gpu.models import blocks

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


def allocator_settings(mode: str) -> str:
    """Return what the caching allocator is told for the mode; "" is nothing."""
    return "expandable_segments:True" if mode == "expandable" else ""


def prepare(mode: str, model: nn.Module) -> None:
    """Change the model as the mode's user would."""
    if mode in ("checkpoint", "selective"):
        options: dict[str, Any] = {"context_fn": _keeping} if mode == "selective" else {}
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


def forward(mode: str) -> AbstractContextManager[Any]:
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
