"""The models that are trained: as published, at batches that fill 20 to 60 GiB; and tiny twins to try things out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.common.models import Bottleneck, resnet, stages, vgg16
from benchmarks.gpu.cells import Request


@dataclass(frozen=True)
class Spec:
    """A model with how it is trained; `made` and its tiny twin by their number of layers, if that can be chosen.

    `length`: tokens of a text of so many `words`, or pixels of a picture's side. `half`: weights are bfloat16 too;
    otherwise they are float32 under bfloat16 autocast. Batches are multiples of `multiple`.
    """

    name: str
    made: Callable[[int], nn.Module]
    made_tiny: Callable[[int], nn.Module]
    batch: int
    multiple: int = 1
    length: int = 224
    words: int = 0
    layers: int = 0
    half: bool = False

    @property
    def text(self) -> bool:
        """Whether it is trained on texts."""
        return self.words > 0

    @property
    def about(self) -> str:
        """Return what a table says of it."""
        what = f"{self.length} tokens" if self.text else f"{self.length} x {self.length}"
        return f"{what}, {'bf16' if self.half else 'fp32 + autocast'}"

    def build(self) -> nn.Module:
        """Return the model."""
        return self.made(self.layers)


def tiny_vgg() -> nn.Module:
    """Two stages and a head with dropout."""
    features = stages([(8, 1), (8, 1)])
    return nn.Sequential(features, nn.Flatten(), nn.Linear(8 * 16 * 16, 64), nn.Dropout(), nn.Linear(64, 1000))


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
# A plain run outside of 20 to 60 GiB sets the batch anew (work.scaled_batch), and says so.
SPECS = {
    spec.name: spec
    for spec in (
        Spec("vgg16", lambda _: vgg16(), lambda _: tiny_vgg(), 640, 16),
        Spec("resnet50", lambda _: resnet((3, 4, 6, 3)), lambda _: resnet((1, 1, 1, 1)), 640, 16),
        Spec("resnet152", lambda _: resnet((3, 8, 36, 3)), lambda _: resnet((1, 1, 1, 1)), 320, 16),
        Spec("gpt2_medium", lambda layers: gpt2(layers, 1024, 16), lambda layers: gpt2(layers, 64, 2, 64, 256), 12,
             length=1024, words=50257, layers=24),
        Spec("gpt2_xl", lambda layers: gpt2(layers, 1600, 25), lambda layers: gpt2(layers, 96, 3, 64, 256), 5,
             length=1024, words=50257, layers=48, half=True),
        Spec("llama", llama, lambda layers: llama(layers, 64, 128, 4, 256), 6,
             length=2048, words=32000, layers=16, half=True),
    )
}  # fmt: skip


def spec_of(request: Request) -> Spec:
    """Return the request's model at the request's batch and depth."""
    spec = SPECS[request["model"]]
    if request.get("quick"):
        spec = tiny(spec)
    return replace(spec, layers=request.get("layers") or spec.layers, batch=request.get("batch") or spec.batch)


def tiny(spec: Spec) -> Spec:
    """Return a twin of the model that trains on any machine in no time."""
    words = 256 if spec.text else 0
    return replace(spec, made=spec.made_tiny, batch=4, multiple=1, length=64, words=words, layers=2)


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the parts that repeat, to put checkpoints around: layers of a decoder, stages of a VGG, bottlenecks."""
    for path in ("transformer.h", "model.layers"):
        with suppress(AttributeError):
            return list(model.get_submodule(path).children())
    modules = list(model.modules())
    bottlenecks: list[nn.Module] = [m for m in modules if isinstance(m, Bottleneck)]
    return bottlenecks or [m for m in modules if isinstance(m, nn.Sequential) and isinstance(m[-1], nn.MaxPool2d)]


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
