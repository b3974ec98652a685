"""torch's unstructured pruning: a mask beside each weight, and their product, made anew in each forward pass."""

from __future__ import annotations

from dataclasses import replace

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Product
from memfit.ir import Category, Phase


def prune_weights(model: Model) -> None:
    """Mask the weight of every layer that is trained."""
    for product in model.products:
        if model.trained_of(product.weight):
            _mask(model, product)


def _mask(model: Model, product: Product) -> None:
    draft, weight, trained = model.draft, product.weight, model.trained_of(product.weight)
    mask = draft.hold(replace(weight, category=Category.PARAMETER))
    old = draft.hold(replace(weight, category=Category.ACTIVATION))  # until the module has the new one
    masked = replace(weight, category=Category.ACTIVATION, born_before=False)
    draft.insert(product.step, "aten::mul.Tensor", [mask, weight], [masked], frees=[old])
    for step in [product.step, *draft.users(weight, Phase.BACKWARD)]:
        step.forget(weight)
        step.reads[masked] = None
    for gradient in trained.gradients if trained else []:
        maker = draft.maker(gradient)
        if maker is not None:
            _mask_gradient(model, maker, gradient, mask)


def _mask_gradient(model: Model, maker: Step, gradient: Piece, mask: Piece) -> None:
    """The gradient of the masked weight, times the mask."""
    draft = model.draft
    whole = replace(gradient)
    times = draft.insert(draft.last_of_layer(maker), "aten::mul.Tensor", [whole, mask], frees=[whole], after=True)
    draft.make_in(gradient, times)
    draft.pieces.append(whole)
    draft.make_in(whole, maker)
