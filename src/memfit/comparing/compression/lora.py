"""peft's LoRA: all weights are frozen, and each linear layer but the last gets two small matrices beside its own."""

from __future__ import annotations

from memfit.comparing.compression.draft import Draft, Piece, Step
from memfit.comparing.compression.model import Model, Product, Trained
from memfit.comparing.compression.split import scale_updates, trained_bytes
from memfit.ir import Category, Phase


def add_lora(model: Model, rank: int) -> None:
    """Freeze what is trained, and train two matrices of `rank` beside each linear layer but the last."""
    before = trained_bytes(model)
    adapted = [product for product in model.hidden if model.trained_of(product.weight) and not product.is_convolution]
    if not adapted:
        return
    frozen = list(model.trained)
    for product in adapted:
        _adapt(model, product, rank)
    for each in frozen:
        _freeze(model, each)
    scale_updates(model, before)


def _adapt(model: Model, product: Product, rank: int) -> None:
    """Put the two matrices of a layer in: they are trained as its weight was."""
    draft, item = model.draft, product.weight.item_bytes
    base, backward = model.trained_of(product.weight), model.backward_of(product)
    assert base is not None
    down, up = (
        _trained_as(model, base, Piece(rank * width * item, Category.PARAMETER, module=product.weight.module))
        for width in (product.inputs, product.outputs)
    )
    between = Piece(product.rows * rank * item, Category.ACTIVATION, product.step.op.source)
    _forward(draft, product, down, up, between)
    if backward:
        _backward(draft, product, backward, down, up, between)


def _forward(draft: Draft, product: Product, down: Trained, up: Trained, between: Piece) -> None:
    """base(x) + up(down(x)) * scaling."""
    base, grown, scaled = (_result(product, Category.ACTIVATION) for _ in range(3))
    operand = [product.operand] if product.operand else []
    last = draft.insert(product.step, "aten::add.Tensor", [base, scaled], frees=[base, scaled], after=True)
    draft.insert(last, "aten::linear", [*operand, down.parameter], [between])
    draft.insert(last, "aten::linear", [between, up.parameter], [grown])
    draft.insert(last, "aten::mul.Tensor", [grown], [scaled], frees=[grown])
    draft.pieces.append(base)
    if product.result is not None:
        draft.make_in(product.result, last)
    draft.make_in(base, product.step)


def _backward(
    draft: Draft, product: Product, steps: list[Step], down: Trained, up: Trained, between: Piece
) -> None:  # fmt: skip
    """The gradients of both matrices, and what comes to the layer's input through them, before its own."""
    first, item = steps[0], product.weight.item_bytes
    scaled = _result(product, Category.GRADIENT)
    thin = Piece(between.size_bytes, Category.GRADIENT, first.op.source)
    came = [p for p in first.reads if p.category is Category.GRADIENT and p.size_bytes == scaled.size_bytes]
    draft.insert(first, "aten::mul.Tensor", came[:1], [scaled])
    _gradient(draft, draft.insert(first, "aten::mm", [scaled, between], frees=[between]), up)
    draft.insert(first, "aten::mm", [scaled, up.parameter], [thin], frees=[scaled])
    _gradient(draft, draft.insert(first, "aten::mm", [thin, *([product.operand] if product.operand else [])]), down)
    if product.weight in first.reads:
        passed = Piece(product.rows * product.inputs * item, Category.GRADIENT, first.op.source)
        draft.insert(first, "aten::mm", [thin, down.parameter], [passed], frees=[thin])
        _add_to(draft, first, passed)
    else:  # nothing wants the gradient of the layer's input
        draft.free_behind(first, thin)


def _add_to(draft: Draft, step: Step, passed: Piece) -> None:
    """Add `passed` to what `step` makes of its size, when all that the layer's step has needed is freed."""
    whole = next((piece for piece in step.writes if piece.size_bytes == passed.size_bytes), None)
    if whole is None:
        return draft.free_behind(step, passed)
    own = Piece(whole.size_bytes, Category.GRADIENT, step.op.source)
    draft.pieces.append(own)
    added = draft.insert(draft.last_of_layer(step), "aten::add.Tensor", [own, passed], frees=[own, passed], after=True)
    draft.make_in(whole, added)
    draft.make_in(own, step)


def _gradient(draft: Draft, step: Step, trained: Trained) -> None:
    for gradient in trained.gradients:
        if not gradient.born_before:
            draft.make_in(gradient, step)


def _result(product: Product, category: Category) -> Piece:
    size_bytes = product.rows * product.outputs * product.weight.item_bytes
    return Piece(size_bytes, category, product.step.op.source)


def _trained_as(model: Model, base: Trained, weight: Piece) -> Trained:
    """Return `weight`, put in, with a gradient and moments as `base` has them."""
    draft = model.draft
    made = Trained(draft.hold(weight))
    for kind in ("gradients", "moments"):
        getattr(made, kind).extend(draft.beside(piece, weight.size_bytes) for piece in getattr(base, kind))
    for step in draft.phase(Phase.OPTIMIZER):
        if base.parameter in step.writes:
            step.reads[weight] = step.writes[weight] = None
    model.trained.append(made)
    return made


def _freeze(model: Model, each: Trained) -> None:
    """Freeze a parameter; what was kept for its gradient alone is kept no longer."""
    makers = [step for step in model.draft.phase(Phase.BACKWARD) if any(step.makes(g) for g in each.gradients)]
    model.freeze(each)
    for step in makers:
        if not step.writes:
            _idle(model, step)


def _idle(model: Model, step: Step) -> None:
    """Let a step of the backward pass, which makes nothing any more, use nothing either."""
    used = list(step.reads)
    step.reads.clear()
    for piece in used:
        if piece.category is Category.ACTIVATION:
            model.draft.free_after_last_use(piece)
