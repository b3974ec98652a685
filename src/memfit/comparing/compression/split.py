"""What techniques share that put other parameters in the place of some: the sizes of the optimizer's updates."""

from __future__ import annotations

from collections import defaultdict

from memfit.comparing.compression.model import Model
from memfit.ir import Phase


def trained_bytes(model: Model) -> dict[int, int]:
    """Return, for each size of a parameter, the bytes of all that have it."""
    found: dict[int, int] = defaultdict(int)
    for each in model.trained:
        found[each.parameter.size_bytes] += each.parameter.size_bytes
    return found


def scale_updates(model: Model, before: dict[int, int]) -> None:
    """Scale what the optimizer makes for itself to the parameters that are left.

    Arguments:
        model: The model, with other parameters.
        before: What `trained_bytes` returned with the ones it had.
    """
    whole, left = sum(before.values()), sum(each.parameter.size_bytes for each in model.trained)
    largest = max((each.parameter.size_bytes for each in model.trained), default=0)
    for step in model.draft.phase(Phase.OPTIMIZER):
        for event in step.events:
            if event.allocates and event.piece.size_bytes in before:
                event.piece.size_bytes = min(event.piece.size_bytes * left // max(whole, 1), largest)
