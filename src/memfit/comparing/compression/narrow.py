"""Narrower layers: structured pruning takes channels out of all that is computed of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Product
from memfit.ir import Category, Phase

Share = Callable[[Product], int]
"""The outputs that are left of a hidden layer."""

_TIMES = re.compile(r"aten::_?(b?mm|baddbmm|matmul)\b")
_WHOLE = Fraction(1)


def prune_channels(model: Model, percent: int) -> None:
    """Take `percent` of the outputs of every layer but the last, and all that is made of them."""
    narrow(model, lambda product: product.outputs - product.outputs * percent // 100)


def narrow(model: Model, left: Share) -> None:
    """Give every hidden layer as many outputs as `left` says; what is computed of them becomes narrower, too."""
    shares = _Shares(model, left)
    for step in model.draft.steps:
        if step.phase is not Phase.OPTIMIZER:
            shares.pass_on(step)
    shares.pass_to_optimizer()
    shares.apply()


class _Shares:
    """The part of each piece that is left: a product of those of its dimensions, found by going through the ops."""

    def __init__(self, model: Model, left: Share) -> None:
        self._model = model
        self._of: dict[Piece, Fraction] = {}
        self._products = {product.step: product for product in [*model.products, *model.embeddings]}
        self._into: dict[Piece, Fraction] = {}  # a weight's rows: what goes into its layer
        self._out: dict[Product, Fraction] = {
            product: Fraction(max(left(product), 1), product.outputs) for product in [*model.hidden, *model.embeddings]
        }
        self._fixed: set[Piece] = set()

    def pass_on(self, step: Step) -> None:
        """Find the shares of what `step` makes."""
        product = self._products.get(step)
        if product is not None:
            self._pass_through(step, product)
            return
        share = self._result_of(step)
        for piece in step.reads:
            self._vector(piece, share)
        for piece in self._made(step):
            self._of[piece] = self._alike(step, piece, share)

    def _pass_through(self, step: Step, product: Product) -> None:
        """A layer: its weight has the shares of what comes in and of what goes out."""
        into = self._into_of(step, product)
        out = self._out.get(product, _WHOLE)
        self._into[product.weight] = into
        self._set(product.weight, into * out)
        for piece in step.reads:
            self._vector(piece, out)
        for piece in self._made(step):
            self._of[piece] = out

    def _into_of(self, step: Step, product: Product) -> Fraction:
        shape = product.weight.tensor.shape if product.weight.tensor else ()
        if product.is_convolution and len(shape) > 1 and shape[1] == 1:  # each channel by itself
            return _WHOLE
        found = [piece for piece in step.reads if piece in self._of and piece.category is not Category.PARAMETER]
        operand = product.operand or max(found, key=lambda piece: piece.size_bytes, default=None)
        return self._of.get(operand, _WHOLE) if operand else _WHOLE

    def _vector(self, piece: Piece, share: Fraction) -> None:
        """A bias, or a norm's weights and statistics: as wide as what is computed beside it."""
        if piece.born_before and piece.category is Category.PARAMETER and piece not in self._of and share != _WHOLE:
            self._set(piece, share if piece.count > 1 else _WHOLE)

    def _set(self, parameter: Piece, share: Fraction) -> None:
        self._of[parameter] = share
        trained = self._model.trained_of(parameter)
        for piece in [*trained.gradients, *trained.moments] if trained else []:
            self._of[piece] = share
            self._fixed.add(piece)

    def _made(self, step: Step) -> list[Piece]:
        made = [event.piece for event in step.events if event.allocates and event.inside]
        return [piece for piece in made if piece not in self._fixed]

    def _result_of(self, step: Step) -> Fraction:
        """The share of a result: of a product of two, what only one of them has; otherwise the largest operand's."""
        weights = [piece for piece in step.reads if piece in self._into]
        if weights and step.phase is Phase.BACKWARD:
            return self._into[weights[0]]
        operands = [p for p in step.reads if p in self._of and p.category is not Category.PARAMETER]
        if _TIMES.match(step.op.name) and len(operands) == 2:
            first, second = (self._of[piece] for piece in operands)
            return _WHOLE if first != _WHOLE and second != _WHOLE else first * second
        return self._of[max(operands, key=lambda piece: piece.size_bytes)] if operands else _WHOLE

    def _alike(self, step: Step, piece: Piece, share: Fraction) -> Fraction:
        """The share of an operand with as many bytes as `piece`, if all such have the same one."""
        found = {
            self._of[each]
            for each in step.reads
            if each in self._of and each.size_bytes == piece.size_bytes and each.category is not Category.PARAMETER
        }
        is_product = bool(_TIMES.match(step.op.name))
        return found.pop() if len(found) == 1 and not is_product else share

    def pass_to_optimizer(self) -> None:
        """What the optimizer makes for itself is of the size of a parameter."""
        model = self._model
        of_size = {each.parameter.size_bytes: self._of.get(each.parameter, _WHOLE) for each in model.trained}
        for step in model.draft.phase(Phase.OPTIMIZER):
            for piece in self._made(step):
                self._of[piece] = of_size.get(piece.size_bytes, _WHOLE)

    def apply(self) -> None:
        """Give each piece its share of its bytes, and each product its widths."""
        for product in self._products.values():
            product.inputs = _of_width(product.inputs, self._into.get(product.weight, _WHOLE))
            product.outputs = _of_width(product.outputs, self._out.get(product, _WHOLE))
        for piece, share in self._of.items():
            piece.size_bytes = _of_width(piece.count, share) * piece.item_bytes


def _of_width(count: int, share: Fraction) -> int:
    return round(count * share)
