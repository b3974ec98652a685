"""Two thin matrices in the place of each weight that is larger than they are together."""

from __future__ import annotations

from memfit.comparing.compression.draft import Piece
from memfit.comparing.compression.model import Model, Product, Trained
from memfit.comparing.compression.split import end_of_use, scale_updates, trained_bytes
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
    draft, item = model.draft, product.weight.item_bytes
    backward, end = model.backward_of(product), end_of_use(model, product)
    sizes = [rank * product.inputs * item, rank * product.outputs * item]
    parts = [Trained(piece) for piece in draft.divide(base.parameter, sizes)]
    for kind in ("gradients", "moments"):
        for piece in getattr(base, kind):
            for part, divided in zip(parts, draft.divide(piece, sizes), strict=True):
                getattr(part, kind).append(divided)
    model.trained.remove(base)
    model.trained += parts
    between = Piece(product.rows * rank * item, Category.ACTIVATION, product.step.op.source)
    draft.hold(between, product.step, end)
    if backward:
        draft.scratch(backward[0], between.size_bytes)
    _two_products(model, product, [part.parameter for part in parts], rank, between)


def _two_products(model: Model, product: Product, weights: list[Piece], rank: int, between: Piece) -> None:
    first, second = weights
    at = model.products.index(product)
    model.products[at : at + 1] = [
        Product(product.step, first, product.rows, product.inputs, rank, between, product.operand),
        Product(product.step, second, product.rows, rank, product.outputs, product.result, between),
    ]
