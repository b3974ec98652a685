"""Small models in training, and each technique of model compression as its library applies it to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Make = Callable[[Any], torch.optim.Optimizer]


def _adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


@dataclass
class Training:
    """A model, its inputs and targets, and how its optimizer is made."""

    model: nn.Module
    x: Tensor
    y: Tensor
    optimizer: Make = _adamw
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    head: str = ""  # the name of the last layer
    made: torch.optim.Optimizer | None = None

    def step(self) -> None:
        """Run one iteration."""
        if self.made is None:
            self.made = self.optimizer([p for p in self.model.parameters() if p.requires_grad])
        self.made.zero_grad()
        self.loss(self.model(self.x).flatten(0, -2), self.y).backward()
        self.made.step()


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = (each(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return out


def mlp(width: int = 512) -> Training:
    """Three layers for images of digits, as `examples/compress.py` has them."""
    layers = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)]
    return Training(nn.Sequential(*layers), torch.randn(256, 64), torch.randint(10, (256,)), head="4")


def cnn(width: int = 32, wider: int = 64) -> Training:
    """Three convolutions with batch norm, pooled."""
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, wider), (wider, wider)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wider, 10))
    return Training(model, torch.randn(32, 3, 16, 16), torch.randint(10, (32,)), head="11")


def gpt(width: int = 256, layers: int = 4, words: int = 512) -> Training:
    """A small decoder."""
    blocks = [Block(width) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(words, width), *blocks, nn.LayerNorm(width), nn.Linear(width, words))
    return Training(model, torch.randint(words, (8, 64)), torch.randint(words, (512,)), head=str(layers + 2))


def probe(width: int = 1024) -> Training:
    """A frozen stack of layers, and one that is trained on what they see."""
    training = mlp(width)
    for parameter in training.model[:4].parameters():  # type: ignore[index]
        parameter.requires_grad_(False)
    return training


def adapted() -> Training:
    """The decoder with peft's adapters."""
    return with_lora(gpt(), 8)


MODELS: dict[str, Callable[[], Training]] = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "probe": probe, "adapted": adapted}


def with_8bit_adam(training: Training, _: int) -> Training:
    """Train with bitsandbytes' AdamW8bit."""
    from bitsandbytes.optim.adamw import AdamW8bit

    return replace(training, optimizer=lambda parameters: AdamW8bit(parameters, lr=1e-3))


def with_lora(training: Training, rank: int) -> Training:
    """Put peft's adapters beside every linear layer but the last."""
    from peft import LoraConfig, get_peft_model

    names = [n for n, m in training.model.named_modules() if isinstance(m, nn.Linear) and n != training.head]
    return replace(training, model=get_peft_model(training.model, LoraConfig(r=rank, target_modules=names)))


def with_bf16(training: Training, _: int) -> Training:
    """Convert the model and its inputs."""
    x = training.x.bfloat16() if training.x.is_floating_point() else training.x
    return replace(training, model=training.model.bfloat16(), x=x)


def with_int8(training: Training, _: int) -> Training:
    """Quantise the frozen linear layers by torchao: so that gradients pass them, or as inference does."""
    from torchao.prototype.quantized_training.int8 import Int8QuantizedTrainingLinearWeight
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    def is_frozen(module: nn.Module, name: str = "") -> bool:
        return isinstance(module, nn.Linear) and not module.weight.requires_grad

    if any("lora" in name for name, _ in training.model.named_modules()):
        for module in filter(is_frozen, training.model.modules()):
            weight = Int8QuantizedTrainingLinearWeight.from_float(module.weight)
            module.weight = nn.Parameter(weight, requires_grad=False)
    else:
        quantize_(training.model, Int8WeightOnlyConfig(), is_frozen)
    return training


def with_fewer_channels(training: Training, percent: int) -> Training:
    """Take channels out by Torch-Pruning."""
    import torch_pruning

    head = training.model.get_submodule(training.head)
    torch_pruning.pruner.BasePruner(
        training.model, training.x, torch_pruning.importance.MagnitudeImportance(), pruning_ratio=percent / 100,
        ignored_layers=[head],
    ).step()  # fmt: skip
    return training


def with_masks(training: Training, _: int) -> Training:
    """Prune four of five weights of every layer by torch's own masks."""
    from torch.nn.utils import prune

    for module in list(training.model.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            prune.l1_unstructured(module, "weight", amount=0.8)
    return training


def with_low_rank(training: Training, rank: int) -> Training:
    """Replace each linear layer by two where that has fewer weights."""
    for name, module in list(training.model.named_modules()):
        if isinstance(module, nn.Linear) and rank * sum(module.weight.shape) < module.weight.numel():
            training.model.set_submodule(name, factors(module, rank))
    return training


def factors(layer: nn.Linear, rank: int) -> nn.Sequential:
    """Return two layers whose product is the nearest to `layer`."""
    u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
    first, second = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features)
    with torch.no_grad():
        first.weight.copy_(s[:rank, None] * v[:rank])
        second.weight.copy_(u[:, :rank])
        second.bias.copy_(layer.bias)
    return nn.Sequential(first, second)


def with_shared(training: Training, values: int) -> Training:
    """Give the weights of each linear layer few values, by k-means."""
    from sklearn.cluster import KMeans

    for module in training.model.modules():
        if isinstance(module, nn.Linear):
            found = KMeans(values, n_init=1, random_state=0).fit(module.weight.detach().reshape(-1, 1).clone().numpy())
            shared = torch.from_numpy(found.cluster_centers_[found.labels_])
            module.weight.data.copy_(shared.view_as(module.weight))
    return training


def with_student(training: Training, width: int) -> Training:
    """Train a narrower model to answer as `training`'s does."""
    teacher, x = training.model, training.x
    made = cnn(width, width) if isinstance(teacher.get_submodule("0"), nn.Conv2d) else mlp(width)
    model = made.model

    class Taught(nn.Module):
        """Both, the teacher first."""

        def __init__(self) -> None:
            super().__init__()
            self.student = model

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.answer = teacher(x).log_softmax(-1)
            out: Tensor = self.student(x)
            return out

    both = Taught()
    del made  # its inputs

    def loss(logits: Tensor, _: Tensor) -> Tensor:
        return F.kl_div(logits.log_softmax(-1), both.answer, log_target=True, reduction="batchmean")

    return replace(training, model=both, x=x, loss=loss)


APPLIED: dict[str, Callable[[Training, int], Training]] = {
    "8bit-adam": with_8bit_adam, "lora": with_lora, "bf16": with_bf16, "int8-frozen": with_int8,
    "channels": with_fewer_channels, "prune": with_masks, "lowrank": with_low_rank, "share": with_shared,
    "distil": with_student,
}  # fmt: skip
