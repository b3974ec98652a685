"""Compresses a classifier of digits in eleven ways: accuracy beside bytes.

Each way starts from the same trained model, but for those that train anew. "a step" is the most memory that a training
step has at once, as memfit records it (`pip install memfit`; otherwise, and inside of a session, it is left out). It
counts the images, too. "in a file" is what the weights take if they are written as compactly as the way allows.

A way whose library is missing says so:
    pip install scikit-learn, and for some ways: pip install bitsandbytes peft torch-pruning torchao

Small: --width 64 --batch 64 --epochs 1. Large: --width 8192.
"""

import argparse
import copy
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--width", type=int, default=512, help="of the hidden layers")
parser.add_argument("--batch", type=int, default=128)
parser.add_argument("--epochs", type=int, default=10, help="of the first training, and of each that follows")
parser.add_argument("--steps", type=int, help="end every training after so many")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--only", default="", help="names of ways, with commas between them")
args = parser.parse_args()

digits = load_digits()
torch.manual_seed(args.seed)
order = torch.randperm(len(digits.target))
images, labels = torch.tensor(digits.data, dtype=torch.float32)[order] / 16, torch.tensor(digits.target)[order]
train_x, train_y, test_x, test_y = images[:1300], labels[:1300], images[1300:], labels[1300:]


def new_model(width=None):
    width = width or args.width
    return nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )  # fmt: skip


def linears(model):
    return [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]


class Training:
    """A model in training: its optimizer, its loss, and the type of its inputs."""

    def __init__(self, model, optimizer=torch.optim.AdamW, loss=None, dtype=torch.float32, autocast=False):
        self.model, self.loss, self.dtype, self.autocast = model, loss or self.cross_entropy, dtype, autocast
        self.optimizer = optimizer([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def cross_entropy(self, x, y):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            return F.cross_entropy(self.model(x.to(self.dtype)), y)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, epochs=None):
        steps = 0
        for _ in range(epochs or args.epochs):
            for chosen in torch.randperm(len(train_x)).split(args.batch):
                loss = self.step(train_x[chosen], train_y[chosen])
                steps += 1
                if args.steps and steps >= args.steps:
                    print(f"loss {loss.item():.6f}")
                    return self
        return self

    def accuracy(self):
        with torch.no_grad():
            return (self.model(test_x.to(self.dtype)).argmax(1) == test_y).float().mean().item()


def plain(model):
    return Training(model).run(), None


def eight_bit_optimizer(model):
    from bitsandbytes.optim import AdamW8bit

    return Training(model, AdamW8bit).run(), None


def eight_bit_weights(model):
    """Frozen: only the biases are trained on."""
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    for _, layer in linears(model):
        layer.weight.requires_grad_(False)
    quantize_(model, Int8WeightOnlyConfig())
    return Training(model).run(), sum(layer.weight.numel() + 4 * len(layer.weight) for _, layer in linears(model))


def adapters(model):
    from peft import LoraConfig, get_peft_model

    names = [name for name, _ in linears(model)[:-1]]
    return Training(get_peft_model(model, LoraConfig(r=8, target_modules=names))).run(), None


def pruned(model):
    from torch.nn.utils import prune

    for _, layer in linears(model):
        prune.l1_unstructured(layer, "weight", amount=0.8)
    training = Training(model).run()
    kept = sum(int(layer.weight.count_nonzero()) * 4 + layer.weight.numel() / 8 for _, layer in linears(model))
    return training, kept  # the weights that are left, and a bit for each that says whether it is


def fewer_channels(model):
    import torch_pruning

    importance = torch_pruning.importance.MagnitudeImportance()
    pruner = torch_pruning.pruner.BasePruner(
        model, train_x[: args.batch], importance, pruning_ratio=0.5, ignored_layers=[model[-1]]
    )
    pruner.step()
    return Training(model).run(), None


def low_rank(model, rank=32):
    for name, layer in linears(model):
        if rank * sum(layer.weight.shape) < layer.weight.numel():
            u, s, v = torch.linalg.svd(layer.weight.detach(), full_matrices=False)
            first, second = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features)
            first.weight.data, second.weight.data = (s[:rank, None] * v[:rank]).clone(), u[:, :rank].clone()
            second.bias = layer.bias
            model.set_submodule(name, nn.Sequential(first, second))
    return Training(model).run(), None


def shared(model, values=16):
    """Train on, then give the weights of each layer 16 values."""
    from sklearn.cluster import KMeans

    training, stored = Training(model).run(), 0.0
    for _, layer in linears(model):
        weights = layer.weight.detach().clone().reshape(-1, 1).numpy()
        found = KMeans(values, n_init=1, random_state=args.seed).fit(weights)
        layer.weight.data.copy_(torch.tensor(found.cluster_centers_[found.labels_]).view_as(layer.weight))
        stored += layer.weight.numel() * math.log2(values) / 8 + 4 * values
    return training, stored


class Sign(torch.autograd.Function):
    """The sign of a weight, whose gradient goes straight through."""

    @staticmethod
    def forward(ctx, weight):
        return weight.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Binary(nn.Linear):
    """A layer with weights of one bit, and one scale; floats are trained."""

    def forward(self, x):
        return F.linear(x, Sign.apply(self.weight) * self.weight.abs().mean(), self.bias)


def binarised(model):
    for _, layer in linears(model):
        layer.__class__ = Binary
    return Training(model).run(), sum(layer.weight.numel() / 8 + 4 for _, layer in linears(model))


def mixed_precision(model):
    return Training(model, autocast=True).run(), None


def bfloat16(model):
    return Training(model.bfloat16(), dtype=torch.bfloat16).run(), None


def distilled(teacher, width=64):
    """A narrower model, trained to answer as the first one does."""
    student = new_model(width)

    def loss(x, y):
        with torch.no_grad():
            taught = (teacher(x) / 2).log_softmax(1)
        return F.kl_div((student(x) / 2).log_softmax(1), taught, log_target=True, reduction="batchmean")

    return Training(student, loss=loss).run(2 * args.epochs), None


WAYS = {
    "plain": (plain, "torch"), "8-bit optimizer": (eight_bit_optimizer, "bitsandbytes"),
    "8-bit weights": (eight_bit_weights, "torchao"), "adapters": (adapters, "peft"), "pruned": (pruned, "torch"),
    "fewer channels": (fewer_channels, "torch-pruning"), "low rank": (low_rank, "torch"),
    "shared": (shared, "scikit-learn"), "binarised": (binarised, "torch"),
    "mixed precision": (mixed_precision, "torch"),
    "bfloat16": (bfloat16, "torch"), "distilled": (distilled, "torch"),
}  # fmt: skip


def weight_bytes(model):
    """Of everything that is there between two steps, masks included, but for what only a step has."""
    tensors = [*model.parameters(), *model.buffers()]
    inner = [getattr(t, name) for t in tensors for name in getattr(t, "tensor_data_names", [])]
    whole = [t for t in tensors if not getattr(t, "tensor_data_names", [])]
    return sum(t.nbytes for t in [*whole, *inner])


def state_bytes(training):
    values = [v for state in training.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    return sum({id(v): v.nbytes for v in values}.values())


def step_bytes(training):
    """The most that a step's ops have at once, as memfit records it; None where that is not to be had."""
    try:
        import memfit
    except ImportError:
        return None
    if memfit.active_session() is not None:
        return None
    trace = memfit.record(lambda: training.step(train_x[: args.batch], train_y[: args.batch]))
    used = {storage for op in trace.ops for storage in (*op.reads, *op.writes)}
    its = [s for index, s in enumerate(trace.storages) if index in used or not s.born_before]
    changes = sorted(change for storage in its for change in _changes(storage))
    held = peak = 0
    for _, size_bytes in changes:
        held += size_bytes
        peak = max(peak, held)
    return peak


def _changes(storage):
    yield storage.alloc_tick, storage.size_bytes
    yield storage.free_tick, -storage.size_bytes


def kb(size_bytes):
    return "-" if size_bytes is None else f"{size_bytes / 1000:.0f} kB"


def main():
    first = Training(new_model()).run().model
    print(f"{'':16} {'accuracy':>9} {'weights':>9} {'optimizer':>9} {'a step':>9} {'in a file':>9}  by")
    chosen = [name.strip() for name in args.only.split(",") if name.strip()] or list(WAYS)
    for name in chosen:
        way, library = WAYS[name]
        torch.manual_seed(args.seed)
        try:
            training, stored = way(copy.deepcopy(first))
        except ImportError as error:
            print(f"{name:16} no {error.name}: pip install {library}")
            continue
        weights, accuracy = weight_bytes(training.model), f"{100 * training.accuracy():.2f} %"
        cells = (weights, state_bytes(training), step_bytes(training), stored if stored is not None else weights)
        print(f"{name:16} {accuracy:>9} {' '.join(f'{kb(cell):>9}' for cell in cells)}  {library}")


main()
