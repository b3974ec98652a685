"""peft's LoRA: all weights are frozen, and each layer but the last gets two small matrices beside its own."""

from __future__ import annotations

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Product, Trained
from memfit.comparing.compression.split import end_of_use, scale_updates, trained_bytes
from memfit.ir import Category, Phase


def add_lora(model: Model, rank: int) -> None:
    """Freeze what is trained, and train two matrices of `rank` beside each linear layer but the last."""
    before = trained_bytes(model)
    adapted = [product for product in model.hidden if model.trained_of(product.weight) and not product.is_convolution]
    if not adapted:
        return
    for product in adapted:
        _adapt(model, product, rank)
    adapters = {id(each) for each in model.trained[-2 * len(adapted) :]}
    for each in [each for each in model.trained if id(each) not in adapters]:
        _freeze(model, each)
    scale_updates(model, before)


def _adapt(model: Model, product: Product, rank: int) -> None:
    """Put the two matrices of a layer in: they are trained as its weight was."""
    draft, item = model.draft, product.weight.item_bytes
    base, backward = model.trained_of(product.weight), model.backward_of(product)
    assert base is not None
    counts = (rank * product.inputs, rank * product.outputs)
    weights = [Piece(n * item, Category.PARAMETER, module=product.weight.module) for n in counts]
    model.trained += [_trained_as(model, base, weight) for weight in weights]
    result = product.rows * product.outputs * item
    draft.scratch(product.step, 2 * result)  # its own result and the scaled one, to be added
    end = end_of_use(model, product)
    draft.hold(Piece(product.rows * rank * item, Category.ACTIVATION, product.step.op.source), product.step, end)
    for step in [product.step, *backward]:
        step.reads |= dict.fromkeys(weights)
    if backward:
        draft.scratch(backward[0], max(result, product.rows * product.inputs * item))


def _trained_as(model: Model, base: Trained, weight: Piece) -> Trained:
    """Return `weight`, put in, with a gradient and moments as `base` has them."""
    draft = model.draft
    draft.hold(weight)
    made = Trained(weight)
    for kind in ("gradients", "moments"):
        for piece in getattr(base, kind):
            getattr(made, kind).append(draft.beside(piece, weight.size_bytes))
    for step in draft.phase(Phase.OPTIMIZER):
        if base.parameter in step.writes:
            step.reads[weight] = step.writes[weight] = None
    return made


def _freeze(model: Model, each: Trained) -> None:
    """Freeze a parameter; what was kept for its gradient alone is kept no longer."""
    makers = [step for step in model.draft.phase(Phase.BACKWARD) if any(step.makes(g) for g in each.gradients)]
    model.freeze(each)
    for step in makers:
        if not step.writes:
            _end(model, step)


def _end(model: Model, step: Step) -> None:
    """Let a step of the backward pass, which makes nothing any more, use nothing either."""
    used = list(step.reads)
    step.reads.clear()
    for piece in used:
        if piece.category is Category.ACTIVATION:
            model.draft.free_after_last_use(piece)
