"""The models that are trained: as published, at batches that fill 20 to 60 GiB; and tiny twins to try things out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Spec:
    """A model with how it is trained. `length`: tokens of a text, or pixels of a picture's side.

    `half`: weights are bfloat16 too; otherwise they are float32 under bfloat16 autocast. Batches are multiples of
    `multiple`.
    """

    name: str
    build: Callable[[], nn.Module]
    batch: int
    multiple: int
    length: int
    text: bool
    half: bool
    words: int = 0
    layers: int = 0
    deepened: Callable[[int], nn.Module] | None = None

    @property
    def about(self) -> str:
        """Return what a table says of it."""
        what = f"{self.length} tokens" if self.text else f"{self.length} x {self.length}"
        return f"{what}, {'bf16' if self.half else 'fp32 + autocast'}"


def vision(name: str) -> nn.Module:
    """Return a network of torchvision's, or where that is not installed the same by ourselves."""
    try:
        from torchvision import models
    except ImportError:
        return _own(name)
    network: nn.Module = getattr(models, name)(weights=None)
    if name.startswith("vgg"):
        network.features = staged(network.features)
    return network


def _own(name: str) -> nn.Module:
    from benchmarks.common.models import resnet, vgg16

    depths = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}
    return staged(vgg16()) if name == "vgg16" else resnet(depths[name])


def staged(features: Any) -> nn.Sequential:
    """Return the same layers, with those up to each pooling as one block: what a checkpoint is put around."""
    stages: list[nn.Module] = []
    layers: list[nn.Module] = []
    for layer in features:
        layers.append(layer)
        if isinstance(layer, nn.MaxPool2d):
            stages.append(nn.Sequential(*layers))
            layers = []
    return nn.Sequential(*stages, *layers)


def tiny_vgg() -> nn.Module:
    """Two stages and a head with dropout."""
    widths = [3, 8, 8]
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:], strict=False):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    return nn.Sequential(staged(layers), nn.Flatten(), nn.Linear(8 * 16 * 16, 64), nn.Dropout(), nn.Linear(64, 1000))


def tiny_resnet() -> nn.Module:
    """One block a stage."""
    from benchmarks.common.models import resnet

    return resnet((1, 1, 1, 1))


def gpt2(layers: int, width: int, heads: int, length: int = 1024, words: int = 50257) -> nn.Module:
    """Radford et al. 2019, with its dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=layers, n_embd=width, n_head=heads, n_positions=length, vocab_size=words,
                        use_cache=False, attn_implementation="sdpa", bos_token_id=0, eos_token_id=0)  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def llama(layers: int, width: int = 2048, inner: int = 8192, heads: int = 32, words: int = 32000) -> nn.Module:
    """The 1.2B model of Llama 3.2 with Llama 2's vocabulary: its layers decide, and not its last matrix."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, vocab_size=words,
                         num_attention_heads=heads, num_key_value_heads=max(heads // 4, 1), use_cache=False,
                         max_position_embeddings=4096, attn_implementation="sdpa")  # fmt: skip
    model: nn.Module = LlamaForCausalLM(config)
    return model


# Batches: decoders by `python -m benchmarks gpu_estimate`, which records them on meta; the others are first guesses.
# A plain run outside of 20 to 60 GiB sets the batch anew (sizes.scaled_batch), and says so.
SPECS = {
    spec.name: spec
    for spec in (
        Spec("vgg16", lambda: vision("vgg16"), 640, 16, 224, text=False, half=False),
        Spec("resnet50", lambda: vision("resnet50"), 640, 16, 224, text=False, half=False),
        Spec("resnet152", lambda: vision("resnet152"), 320, 16, 224, text=False, half=False),
        Spec("gpt2_medium", lambda: gpt2(24, 1024, 16), 12, 1, 1024, text=True, half=False, words=50257, layers=24,
             deepened=lambda layers: gpt2(layers, 1024, 16)),
        Spec("gpt2_xl", lambda: gpt2(48, 1600, 25), 5, 1, 1024, text=True, half=True, words=50257, layers=48,
             deepened=lambda layers: gpt2(layers, 1600, 25)),
        Spec("llama", lambda: llama(16), 6, 1, 2048, text=True, half=True, words=32000, layers=16,
             deepened=llama),
    )
}  # fmt: skip

_TINY: dict[str, Callable[[int], nn.Module]] = {
    "vgg16": lambda _: tiny_vgg(),
    "resnet50": lambda _: tiny_resnet(),
    "resnet152": lambda _: tiny_resnet(),
    "gpt2_medium": lambda layers: gpt2(layers, 64, 2, 64, 256),
    "gpt2_xl": lambda layers: gpt2(layers, 96, 3, 64, 256),
    "llama": lambda layers: llama(layers, 64, 128, 4, 256),
}


def spec_of(request: dict[str, Any]) -> Spec:
    """Return the request's model at the request's batch and depth."""
    spec = SPECS[request["model"]]
    if request.get("quick"):
        spec = tiny(spec)
    layers = request.get("layers")
    if layers is not None and spec.deepened is not None:
        deepened = spec.deepened
        spec = replace(spec, layers=layers, build=lambda: deepened(layers))
    return replace(spec, batch=request.get("batch") or spec.batch)


def tiny(spec: Spec) -> Spec:
    """Return a twin of the model that trains on any machine in no time."""
    build = _TINY[spec.name]
    return replace(spec, build=lambda: build(2), batch=4, multiple=1, length=64, words=256, layers=2,
                   deepened=build if spec.deepened else None)  # fmt: skip


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the parts that repeat, to put checkpoints around: layers of a decoder, stages of a VGG, bottlenecks."""
    from benchmarks.common.models import Bottleneck

    for path in ("transformer.h", "model.layers"):
        found: Any = model
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return list(found)
    modules = list(model.modules())
    bottlenecks = [m for m in modules if isinstance(m, Bottleneck) or type(m).__name__ == "Bottleneck"]
    sequences = [m for m in modules if isinstance(m, nn.Sequential) and len(m)]
    return bottlenecks or [m for m in sequences if isinstance(m[-1], nn.MaxPool2d)]


def example(spec: Spec, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return a batch, the same for the same seed."""
    if spec.text:
        tokens = torch.randint(spec.words, (spec.batch, spec.length), device=device)
        return tokens, tokens
    dtype = torch.bfloat16 if spec.half else torch.float32
    pictures = torch.randn(spec.batch, 3, spec.length, spec.length, device=device, dtype=dtype)
    if device.type == "cuda":
        pictures = pictures.to(memory_format=torch.channels_last)
    return pictures, torch.randint(1000, (spec.batch,), device=device)


def loss_of(spec: Spec, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the loss, as a script would compute it."""
    if spec.text:
        loss: Tensor = model(input_ids=inputs, labels=labels).loss
        return loss
    return functional.cross_entropy(model(inputs), labels)
