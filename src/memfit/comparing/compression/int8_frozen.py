"""torchao's 8-bit weights for what is frozen: a byte an element and a scale a row."""

from __future__ import annotations

from memfit.comparing.compression.model import Model, Product
from memfit.ir import Phase


def quantise_frozen(model: Model) -> None:
    """Keep the frozen weights of linear layers in 8 bits. A layer makes floats of them for as long as it computes."""
    seen = set()
    for product in model.products:
        is_frozen = model.trained_of(product.weight) is None and not _is_written(model, product)
        if is_frozen and product.weight.is_float and not product.is_convolution and product.weight not in seen:
            _quantise(model, product)
        seen.add(product.weight)


def passes_gradients(model: Model, product: Product) -> bool:
    """Return whether the backward pass needs the layer's weight."""
    return any(model.draft.users(product.weight, Phase.BACKWARD))


def _is_written(model: Model, product: Product) -> bool:
    return any(product.weight in step.writes for step in model.draft.steps)


def _quantise(model: Model, product: Product) -> None:
    draft, weight = model.draft, product.weight
    floats, result = weight.size_bytes, product.rows * product.outputs * weight.item_bytes
    draft.scratch(product.step, max(floats, result))  # the floats of the weight, then the result before its scales
    for step in draft.users(weight, Phase.BACKWARD):
        draft.scratch(step, floats + result)
    weight.size_bytes = product.weight_count + product.outputs * weight.item_bytes
    weight.item_bytes, weight.is_float = 1, False
