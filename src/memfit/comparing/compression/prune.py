"""torch's unstructured pruning: a mask beside each weight, and their product, which is made anew in each forward pass."""

from __future__ import annotations

from dataclasses import replace

from memfit.comparing.compression.draft import Event
from memfit.comparing.compression.model import Model, Product
from memfit.ir import Category


def prune_weights(model: Model) -> None:
    """Mask the weight of every layer."""
    seen = set()
    for product in model.products:
        if product.weight not in seen and model.trained_of(product.weight):
            _mask(model, product)
        seen.add(product.weight)


def _mask(model: Model, product: Product) -> None:
    draft, weight = model.draft, product.weight
    backward, trained = model.backward_of(product), model.trained_of(weight)
    mask = draft.hold(replace(weight, category=Category.PARAMETER))
    old = draft.hold(replace(weight, category=Category.ACTIVATION))  # until the module gets the new one
    masked = draft.hold(replace(weight, category=Category.ACTIVATION), product.step)
    product.step.events.insert(1, Event(old, allocates=False))
    product.step.reads[mask] = None
    for step in backward:
        if weight in step.reads:
            step.forget(weight)
            step.reads[masked] = None
        if trained and any(step.makes(gradient) for gradient in trained.gradients):
            step.reads[mask] = None
            draft.scratch(step, weight.size_bytes)  # the gradient of the masked weight
