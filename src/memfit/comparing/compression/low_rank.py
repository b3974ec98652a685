"""Two thin matrices in the place of each weight that is larger than they are together."""

from __future__ import annotations

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Product, Trained
from memfit.comparing.compression.split import scale_updates, trained_bytes
from memfit.ir import Category


def factorise(model: Model, rank: int) -> None:
    """Replace the weights of linear layers by factors of `rank`, which are trained as they were."""
    before = trained_bytes(model)
    for product in list(model.products):
        is_smaller = rank * (product.inputs + product.outputs) < product.weight_count
        base = model.trained_of(product.weight)
        if is_smaller and base is not None and not product.is_convolution:
            _split(model, product, base, rank)
    scale_updates(model, before)


def _split(model: Model, product: Product, base: Trained, rank: int) -> None:
    item, backward = product.weight.item_bytes, model.backward_of(product)
    sizes = [rank * product.inputs * item, rank * product.outputs * item]
    first, second = (Trained(piece) for piece in model.draft.divide(base.parameter, sizes))
    for kind in ("gradients", "moments"):
        for piece in getattr(base, kind):
            for part, divided in zip((first, second), model.draft.divide(piece, sizes), strict=True):
                getattr(part, kind).append(divided)
    model.trained.remove(base)
    model.trained += [first, second]
    between = Piece(product.rows * rank * item, Category.ACTIVATION, product.step.op.source)
    _forward(model, product, first.parameter, second.parameter, between)
    if backward:
        _backward(model, backward, first, second, between)
    _two_products(model, product, [first.parameter, second.parameter], rank, between)


def _forward(model: Model, product: Product, first: Piece, second: Piece, between: Piece) -> None:
    """second(first(x))."""
    operand = [product.operand] if product.operand else []
    model.draft.insert(product.step, "aten::linear", [*operand, first], [between])
    for piece in [*operand, first]:
        product.step.forget(piece)
    product.step.reads |= {second: None, between: None}


def _backward(model: Model, steps: list[Step], first: Trained, second: Trained, between: Piece) -> None:
    """What comes to the thin rows before the recorded steps, which then use the first factor alone."""
    draft, step = model.draft, steps[0]
    thin = Piece(between.size_bytes, Category.GRADIENT, step.op.source)
    came = [piece for piece in step.reads if piece.category is Category.GRADIENT]
    draft.insert(step, "aten::mm", [*came[:1], second.parameter], [thin])
    factor = draft.insert(step, "aten::mm", [*came[:1], between], frees=[between])
    for gradient in second.gradients:
        if not gradient.born_before:
            draft.make_in(gradient, factor)
    for each in steps:
        each.forget(second.parameter)
        each.reads[thin] = None
    draft.free_behind(steps[-1], thin)


def _two_products(model: Model, product: Product, weights: list[Piece], rank: int, between: Piece) -> None:
    first, second = weights
    at = model.products.index(product)
    model.products[at : at + 1] = [
        Product(product.step, first, product.rows, product.inputs, rank, between, product.operand),
        Product(product.step, second, product.rows, rank, product.outputs, product.result, between),
    ]
