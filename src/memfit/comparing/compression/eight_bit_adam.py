"""bitsandbytes' 8-bit Adam: two moments of a byte an element, with a scale for each block of 256."""

from __future__ import annotations

from memfit.comparing.compression.draft import Piece, Step
from memfit.comparing.compression.model import Model, Trained
from memfit.ir import Category, Op, Phase, align_up

_BLOCK = 256
_LEAST = 4096  # elements; smaller parameters keep their moments in 32 bits
_CODE_BYTES = 2 * 256 * 4  # the values that the bytes stand for, signed and not
_NAME = "bitsandbytes::optimizer_update_8bit_blockwise"
_SMALL_NAME = "bitsandbytes::optimizer_update_32bit"
# On the CPU the update is made of torch's ops, which have these bytes an element at once. GPUs have a kernel.
_CPU_SCRATCH_BYTES = 20
_CPU_SMALL_SCRATCH_BYTES = 12


def use_eight_bit_adam(model: Model) -> None:
    """Keep the moments in 8 bits, and update one parameter an op; nothing changes where there are no two moments."""
    kept = [each for each in model.trained if len(each.moments) == 2]
    if not any(each.parameter.count >= _LEAST for each in kept):
        return
    for each in kept:
        if each.parameter.count >= _LEAST:
            for moment in each.moments:
                _quantise(moment)
    model.draft.drop(model.leftovers)
    model.leftovers = []
    for _ in range(2):
        model.draft.hold(Piece(_CODE_BYTES // 2, Category.OPTIMIZER_STATE))
    _replace_updates(model, kept)


def _quantise(moment: Piece) -> None:
    count = moment.count
    moment.size_bytes, moment.item_bytes, moment.is_float = count + 4 * -(-count // _BLOCK), 1, False


def _replace_updates(model: Model, kept: list[Trained]) -> None:
    """Put one op a parameter in the place of the optimizer's, and take out what these made for themselves."""
    draft, old = model.draft, list(model.draft.phase(Phase.OPTIMIZER))
    made = {event.piece for step in old for event in step.events if event.allocates}
    freed = {event.piece for step in old for event in step.events if not event.allocates}
    draft.drop(made & freed)
    for step in old:
        for each in kept:
            for piece in (each.parameter, *each.gradients, *each.moments):
                step.forget(piece)
    idle = [step for step in old if not step.reads and not step.writes]
    at = draft.steps.index(old[0])
    duration_us = sum(step.op.duration_us for step in idle) / max(len(kept), 1)
    draft.steps[at:at] = [_update(model, each, duration_us) for each in kept]
    draft.remove(idle)


def _update(model: Model, each: Trained, duration_us: float) -> Step:
    is_small = each.moments[0].is_float
    trace, updated = model.draft.trace, dict.fromkeys([each.parameter, *each.moments])
    reads = updated | dict.fromkeys(each.gradients[-1:])
    scratch = _CPU_SMALL_SCRATCH_BYTES if is_small else _CPU_SCRATCH_BYTES
    size_bytes = align_up(scratch * each.parameter.count, trace.alignment) if trace.device == "cpu" else 0
    op = Op(_SMALL_NAME if is_small else _NAME, Phase.OPTIMIZER, duration_us, "", (), (), 0, 0)
    step = Step(op, reads, updated)
    if size_bytes:
        model.draft.scratch(step, size_bytes)
    return step
