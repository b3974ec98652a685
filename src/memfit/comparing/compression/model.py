"""The parts of training in a draft: what is trained, with its gradient and its moments, and the matrix products."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from memfit.comparing.compression.draft import Draft, Piece, Step
from memfit.ir import Category, Phase
from memfit.shapes import Shapes, Tensor, parse_shapes

# The operand that is the weight, and whether it lies as (in, out), for the ops of layers.
_WEIGHT_AT = {"linear": (1, False), "convolution": (1, False), "addmm": (2, True), "mm": (1, True), "matmul": (1, True)}
_EMBEDDING = {"embedding": (0, True)}
_CONVOLUTION = re.compile(r"_?conv(olution)?([123]d)?$")
_SCALAR_BYTES = 8  # a step that is counted in a tensor


@dataclass(eq=False, slots=True)
class Trained:
    """A parameter that the optimizer changes.

    Attributes:
        parameter: Its values.
        gradients: Its gradient, as it is made in the iteration and, before that, as the last one left it.
        moments: States of its size, as Adam has two.
    """

    parameter: Piece
    gradients: list[Piece] = field(default_factory=list)
    moments: list[Piece] = field(default_factory=list)

    @property
    def all_bytes(self) -> int:
        """The bytes of all of them that are alive at once: the parameter, one gradient and the moments."""
        return (1 + bool(self.gradients) + len(self.moments)) * self.parameter.size_bytes


@dataclass(eq=False, slots=True)
class Product:
    """A layer's product of rows with its weight.

    Attributes:
        step: The step of the forward pass that computes it.
        weight: The weight.
        rows: The number of rows: batch times sequence.
        inputs: The width of a row that goes in.
        outputs: The width of one that comes out.
        result: What comes out; None if it is a part of a larger storage.
        operand: What goes in.
        is_convolution: Whether it is a convolution; its `inputs` then count the positions of its kernel, too.
    """

    step: Step
    weight: Piece
    rows: int
    inputs: int
    outputs: int
    result: Piece | None
    operand: Piece | None
    is_convolution: bool = False

    @property
    def weight_count(self) -> int:
        """The elements of the weight."""
        return self.inputs * self.outputs


@dataclass(slots=True)
class Model:
    """A draft with its parts. Techniques change all three."""

    draft: Draft
    trained: list[Trained]
    products: list[Product]
    embeddings: list[Product]  # look-ups of rows: `inputs` are the rows there are, `outputs` a row's width
    leftovers: list[Piece]  # of the optimizer's state: the counts of steps

    @property
    def hidden(self) -> list[Product]:
        """The products but for the last, whose result are the model's answers."""
        return self.products[:-1]

    def trained_of(self, piece: Piece) -> Trained | None:
        """Return what is trained of a weight; None for one that is frozen."""
        return next((each for each in self.trained if each.parameter is piece), None)

    def freeze(self, each: Trained) -> None:
        """Train a parameter no longer: it has no gradient and no state, and the optimizer leaves it alone."""
        self.trained.remove(each)
        self.draft.drop([*each.gradients, *each.moments])
        for step in self.draft.phase(Phase.OPTIMIZER):
            step.forget(each.parameter)

    def backward_of(self, product: Product) -> list[Step]:
        """Return the steps of the backward pass that use the weight of `product`, or make its gradient."""
        trained = self.trained_of(product.weight)
        made = trained.gradients if trained else []
        return [
            step
            for step in self.draft.phase(Phase.BACKWARD)
            if step.uses(product.weight) or any(step.makes(gradient) for gradient in made)
        ]


def model_of(draft: Draft) -> Model:
    """Return the parts of `draft`."""
    trained = [Trained(piece) for piece in draft.pieces if _is_trained(draft, piece)]
    _give(trained, _gradients(draft), "gradients")
    states = [piece for piece in draft.pieces if piece.category is Category.OPTIMIZER_STATE]
    _give(trained, (piece for piece in states if piece.size_bytes > _SCALAR_BYTES), "moments")
    products, embeddings = list(_products(draft, _WEIGHT_AT)), list(_products(draft, _EMBEDDING))
    return Model(draft, trained, products, embeddings, [p for p in states if p.size_bytes <= _SCALAR_BYTES])


def _is_trained(draft: Draft, piece: Piece) -> bool:
    return piece.category is Category.PARAMETER and any(piece in s.writes for s in draft.phase(Phase.OPTIMIZER))


def _gradients(draft: Draft) -> Iterator[Piece]:
    """Yield the gradients that the optimizer reads, and those that the last iteration has left."""
    read = {piece for step in draft.phase(Phase.OPTIMIZER) for piece in step.reads}
    return (p for p in draft.pieces if p.category is Category.GRADIENT and (p in read or p.born_before))


def _give(trained: list[Trained], pieces: Iterable[Piece], kind: str) -> None:
    """Give each of `pieces` to a parameter of its size, that which has the fewest first."""
    by_size = defaultdict[int, list[Trained]](list)
    for each in trained:
        by_size[each.parameter.size_bytes].append(each)
    for piece in pieces:
        if takers := by_size.get(piece.size_bytes):
            getattr(min(takers, key=lambda each: len(getattr(each, kind))), kind).append(piece)


def _products(draft: Draft, weight_at: Mapping[str, tuple[int, bool]]) -> Iterator[Product]:
    for step in draft.phase(Phase.FORWARD):
        name, shapes = step.op.name.partition(".")[0].removeprefix("aten::"), parse_shapes(step.op.tensors)
        at, is_transposed = weight_at.get(_CONVOLUTION.sub("convolution", name), (None, False))
        found = _operand(step, shapes, at)
        if found is not None and at is not None:
            yield _product(step, shapes, *found, at, is_transposed, is_convolution=bool(_CONVOLUTION.match(name)))


def _operand(step: Step, shapes: Shapes, at: int | None) -> tuple[Piece, Tensor] | None:
    """Return the weight of an op and its tensor: a matrix that is there before the iteration, and stays."""
    tensor = shapes.inputs[at] if at is not None and at < len(shapes.inputs) else None
    if tensor is None or len(tensor.shape) < 2:
        return None
    fitting = [p for p in step.reads if p.born_before and p.size_bytes == tensor.size_bytes]
    fitting.sort(key=lambda piece: piece.category is not Category.PARAMETER)
    return (fitting[0], tensor) if fitting else None


def _product(
    step: Step, shapes: Shapes, weight: Piece, tensor: Tensor, at: int, is_transposed: bool, *, is_convolution: bool
) -> Product:
    outputs = tensor.shape[-1] if is_transposed else tensor.shape[0]
    inputs, result = tensor.count // outputs, shapes.outputs[0] if shapes.outputs else None
    operand = shapes.inputs[at - 1] if at else None
    rows = result.count // outputs if result else 0
    return Product(
        step, weight, rows, inputs, outputs,
        _fitting(step.writes, result), _fitting((p for p in step.reads if p is not weight), operand), is_convolution,
    )  # fmt: skip


def _fitting(pieces: Iterable[Piece], tensor: Tensor | None) -> Piece | None:
    size_bytes = tensor.size_bytes if tensor else -1
    return next((piece for piece in pieces if piece.size_bytes == size_bytes), None)
