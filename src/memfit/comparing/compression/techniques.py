"""The techniques that `memfit whatif --with` foresees, by name: their arithmetic, and the lines that apply them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memfit.comparing.compression.bf16 import use_bf16
from memfit.comparing.compression.distil import distil
from memfit.comparing.compression.draft import Draft
from memfit.comparing.compression.eight_bit_adam import use_eight_bit_adam
from memfit.comparing.compression.int8_frozen import passes_gradients, quantise_frozen
from memfit.comparing.compression.lora import add_lora
from memfit.comparing.compression.low_rank import factorise
from memfit.comparing.compression.model import Model, model_of
from memfit.comparing.compression.narrow import prune_channels
from memfit.comparing.compression.prune import prune_weights
from memfit.errors import UsageError
from memfit.ir import Trace

Apply = Callable[[Model, int], None]
Lines = Callable[[int, bool], list[str]]


@dataclass(frozen=True)
class Technique:
    """A way to make a model, or its training, smaller.

    Attributes:
        name: Its name on the command line.
        about: What it does, in a few words.
        library: The library that does it, as it is installed.
        apply: Its arithmetic: it changes a model.
        lines: The lines of Python that apply it, given its number, and whether gradients pass frozen weights.
        unit: The number that follows its name, as it is written after ":"; "" for none.
    """

    name: str
    about: str
    library: str
    apply: Apply
    lines: Lines
    unit: str = ""

    @property
    def form(self) -> str:
        """How it is written."""
        return f"{self.name}:{self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class Chosen:
    """A technique with its number; 0 where it takes none."""

    technique: Technique
    number: int = 0

    @property
    def word(self) -> str:
        """How it is written on the command line."""
        percent = "%" if self.technique.unit.endswith("%") else ""
        return f"{self.technique.name}:{self.number}{percent}" if self.technique.unit else self.technique.name


def _share(model: Model, values: int) -> None:
    """Nothing: a weight is a float of its own as long as it is trained, whatever it is in a file."""


def _int8(number: int, passes: bool) -> list[str]:
    if not passes:
        return [
            "from torchao.quantization import Int8WeightOnlyConfig, quantize_",
            "frozen = lambda m, _: isinstance(m, nn.Linear) and not m.weight.requires_grad",
            "quantize_(model, Int8WeightOnlyConfig(), frozen)",
        ]
    return [  # the other one keeps floats of every weight for the backward pass
        "from torchao.prototype.quantized_training.int8 import (",
        "    Int8QuantizedTrainingLinearWeight as Int8)",
        "for layer in frozen_linear_layers:  # Int8WeightOnlyConfig would keep floats",
        "    layer.weight = nn.Parameter(Int8.from_float(layer.weight), False)",
    ]


def _plain(*lines: str) -> Lines:
    return lambda number, passes: [line.replace("{n}", str(number)) for line in lines]


# In the order in which they are applied when several are given.
TECHNIQUES = (
    Technique("distil", "a student of this width", "torch", distil, _plain(
        "with torch.no_grad():",
        "    taught = model(x).log_softmax(-1)  # train one of width {n} instead",
        "loss = F.kl_div(student(x).log_softmax(-1), taught, log_target=True)",
        ), "WIDTH"),
    Technique("channels", "channels taken out", "torch-pruning", prune_channels, _plain(
        "import torch_pruning as tp",
        "tp.pruner.BasePruner(model, x, tp.importance.MagnitudeImportance(),",
        "    pruning_ratio={n} / 100, ignored_layers=[last_layer]).step()",
        ), "PERCENT%"),
    Technique("lowrank", "two factors for a weight", "torch", factorise, _plain(
        "u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)",
        "first = nn.Linear(layer.in_features, {n}, bias=False)",
        "second = nn.Linear({n}, layer.out_features)",
        "first.weight.data = (s[:{n}, None] * v[:{n}]).clone()",
        "second.weight.data, second.bias = u[:, :{n}].clone(), layer.bias",
        "model.set_submodule(name, nn.Sequential(first, second))",
        ), "RANK"),
    Technique("prune", "weights set to zero by a mask", "torch", lambda model, _: prune_weights(model), _plain(
        "from torch.nn.utils import prune",
        'prune.l1_unstructured(layer, "weight", amount=0.8)  # for each layer')),
    Technique("share", "weights of few values", "scikit-learn", _share, _plain(
        "values = layer.weight.detach().clone().reshape(-1, 1).numpy()",
        "found = KMeans({n}).fit(values)",
        "new = torch.from_numpy(found.cluster_centers_[found.labels_])",
        "layer.weight.data.copy_(new.view_as(layer.weight))"), "VALUES"),
    Technique("lora", "adapters beside frozen weights", "peft", add_lora, _plain(
        "from peft import LoraConfig, get_peft_model",
        "names = [...]  # of the linear layers but the last",
        "model = get_peft_model(model, LoraConfig(r={n}, target_modules=names))"), "RANK"),
    Technique("int8-frozen", "frozen weights in 8 bits", "torchao", lambda model, _: quantise_frozen(model), _int8),
    Technique("bf16", "all floats in bfloat16", "torch", lambda model, _: use_bf16(model), _plain(
        "model = model.to(torch.bfloat16)  # before the optimizer is made",
        "x = x.to(torch.bfloat16)  # its inputs, too")),
    Technique("8bit-adam", "Adam's moments in 8 bits", "bitsandbytes", lambda m, _: use_eight_bit_adam(m), _plain(
        "import bitsandbytes",
        "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=...)")),
)  # fmt: skip


def parse_techniques(text: str) -> list[Chosen]:
    """Return what "8bit-adam,lora:8" names; raises UsageError for what there is not."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError("--with names no technique", why="it is empty", remedy=_remedy())
    chosen = [_parse(word) for word in words]
    return list({each.word: each for each in chosen}.values())


def _parse(word: str) -> Chosen:
    name, _, number = word.partition(":")
    technique = next((each for each in TECHNIQUES if each.name == name), None)
    if technique is None:
        raise UsageError(
            f"there is no technique {name!r}", why="--with takes those it has arithmetic for", remedy=_remedy()
        )
    digits = number.removesuffix("%") if technique.unit.endswith("%") else number
    if not technique.unit:
        if number or ":" in word:
            raise UsageError(f"{name} takes no number", why=f"it was written {word!r}", remedy=f"--with {name}")
        return Chosen(technique)
    most = 99 if technique.unit.endswith("%") else 2**31
    if not digits.isascii() or not digits.isdigit() or not 1 <= int(digits) <= most:
        why = f"{word!r} has none from 1 to {most}"
        raise UsageError(
            f"{name} needs a number", why=why, remedy=f"write it as {technique.form}: {_example(technique)}"
        )
    return Chosen(technique, int(digits))


def _example(technique: Technique) -> str:
    return f"{technique.name}:50%" if technique.unit.endswith("%") else f"{technique.name}:16"


def _remedy() -> str:
    return f"one or more of {', '.join(each.form for each in TECHNIQUES)}, with commas between them"


def compressed(trace: Trace, chosen: Sequence[Chosen]) -> Trace:
    """Return `trace` as it would be with the techniques.

    Arguments:
        trace: A recorded iteration, with the shapes of its tensors.
        chosen: The techniques. Whatever their order, what changes the layers comes before what changes numbers.

    Returns:
        The trace, whose ops are the recorded ones but for those of the optimizer.

    Raises:
        UsageError: The trace has no shapes.
    """
    return _changed(trace, chosen).draft.build("+".join(each.word for each in chosen))


def library_lines(trace: Trace, chosen: Chosen, others: Sequence[Chosen] = ()) -> list[str]:
    """Return the lines that apply a technique to the model of `trace`, to which `others` are applied too."""
    model = _changed(trace, [each for each in others if each.technique is not chosen.technique])
    passes = any(passes_gradients(model, product) for product in model.products)
    return chosen.technique.lines(chosen.number, passes)


def _changed(trace: Trace, chosen: Sequence[Chosen]) -> Model:
    if not any(op.tensors for op in trace.ops):
        raise UsageError(
            "the trace does not say what its tensors are",
            why="--with needs their shapes, and it was recorded by a session, or by an earlier memfit",
            remedy="record it again: memfit trace SCRIPT -o FILE",
        )
    model = model_of(Draft(trace))
    for each in sorted(chosen, key=lambda each: TECHNIQUES.index(each.technique)):
        each.technique.apply(model, each.number)
    return model
