"""torchao's 8-bit weights for what is frozen: a byte an element and a scale a row."""

from __future__ import annotations

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Product
from memfit.ir import Category, Phase


def quantise_frozen(model: Model) -> None:
    """Keep the frozen weights of linear layers in 8 bits. A layer makes floats of them for as long as it computes."""
    for weight in dict.fromkeys(product.weight for product in model.products):
        layers = [product for product in model.products if product.weight is weight]
        is_written = any(weight in step.writes for step in model.draft.steps)
        if weight.is_float and not is_written and not any(layer.is_convolution for layer in layers):
            _quantise(model, weight, layers)


def passes_gradients(model: Model, product: Product) -> bool:
    """Return whether the backward pass needs the layer's weight."""
    return bool(model.draft.users(product.weight, Phase.BACKWARD))


def _quantise(model: Model, weight: Piece, layers: list[Product]) -> None:
    for layer in layers:
        _forward(model, layer)
    for step in model.draft.users(weight, Phase.BACKWARD):
        _backward(model, step, layers[0])
    weight.size_bytes = layers[0].weight_count + layers[0].outputs * weight.item_bytes
    weight.item_bytes, weight.is_float = 1, False


def _forward(model: Model, layer: Product) -> None:
    """(x @ floats) * scales + bias."""
    draft, result = model.draft, layer.rows * layer.outputs * layer.weight.item_bytes
    _floats(model, layer.step, layer.weight)
    raw = Piece(result, Category.ACTIVATION, layer.step.op.source)
    scaled = draft.insert(layer.step, "aten::mul.Tensor", [raw, layer.weight], frees=[raw], after=True)
    draft.pieces.append(raw)
    if layer.result is not None:
        draft.make_in(layer.result, scaled)
    draft.make_in(raw, layer.step)


def _backward(model: Model, step: Step, layer: Product) -> None:
    """(gradient * scales) @ floats, and then the weight's gradient, which is computed though it is thrown away."""
    draft, result = model.draft, layer.rows * layer.outputs * layer.weight.item_bytes
    came = [p for p in step.reads if p.category is Category.GRADIENT and p.size_bytes == result]
    scaled = Piece(result, Category.GRADIENT, step.op.source)
    draft.insert(step, "aten::mul.Tensor", [*came[:1], layer.weight], [scaled])
    floats = _floats(model, step, layer.weight)
    thrown = Piece(floats.size_bytes, Category.GRADIENT, step.op.source)
    used = [scaled] if layer.operand is None else [scaled, layer.operand]
    last = draft.insert(step, "aten::mm", used, [thrown], frees=[thrown, scaled], after=True)
    for piece in used:
        draft.keep_until(piece, last)


def _floats(model: Model, step: Step, weight: Piece) -> Piece:
    """Let `step` use floats of `weight` instead, which are there as long as it runs."""
    floats = Piece(weight.size_bytes, Category.SCRATCH, step.op.source)
    model.draft.insert(step, "aten::to.dtype", [weight], [floats])
    model.draft.free_behind(step, floats)
    step.forget(weight)
    step.reads[floats] = None
    return floats
