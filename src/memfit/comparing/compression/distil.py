"""Distillation: a narrower student learns to answer as the model does, which runs beside it and keeps nothing."""

from __future__ import annotations

from dataclasses import replace

from memfit.comparing.compression.draft import Event, Piece, Step
from memfit.comparing.compression.model import Model
from memfit.comparing.compression.narrow import narrow
from memfit.ir import Category, Phase


def distil(model: Model, width: int) -> None:
    """Train a student whose hidden layers have `width` outputs, to answer as the model does, which runs beside it."""
    teacher = _Teacher(model)
    narrow(model, lambda product: min(width, product.outputs))
    teacher.put_in()


class _Teacher:
    """A copy of the forward pass that keeps nothing for a backward pass."""

    def __init__(self, model: Model) -> None:
        self._model, draft = model, model.draft
        last = model.products[-1].step if model.products else None
        count = draft.steps.index(last) + 1 if last else 0
        self._copies: dict[Piece, Piece] = {}
        self._weights: list[Piece] = []
        self._steps = [self._copied(step) for step in draft.steps[:count] if step.phase is Phase.FORWARD]

    def _copied(self, step: Step) -> Step:
        made = {event.piece for event in step.events if event.allocates and event.inside}
        self._copies |= {piece: replace(piece) for piece in made}
        for piece in step.reads:
            if piece.category is Category.PARAMETER and piece not in self._copies:
                self._copies[piece] = replace(piece)
                self._weights.append(self._copies[piece])
        reads, writes = ({self._copies.get(p, p): None for p in used} for used in (step.reads, step.writes))
        copied = Step(step.op, reads, writes)
        copied.recorded_bytes, copied.recorded_peak = step.recorded_bytes, step.recorded_peak
        copied.events = [
            replace(event, piece=self._copies[event.piece]) for event in step.events if event.piece in made
        ]
        return copied

    def put_in(self) -> None:
        """Let the teacher answer before the student does; its answer, and what the loss makes of both, is kept."""
        model, draft = self._model, self._model.draft
        if not self._steps:
            return
        draft.steps[:0] = self._steps
        made = [event.piece for step in self._steps for event in step.events if event.allocates]
        freed = {event.piece for step in self._steps for event in step.events if not event.allocates}
        draft.pieces += [*self._weights, *made]
        answer = self._copies.get(model.products[-1].result) if model.products[-1].result else None
        for piece in made:
            if piece is not answer and piece not in freed:
                [step for step in self._steps if step.uses(piece) or step.makes(piece)][-1].events.append(
                    Event(piece, allocates=False)
                )
        self._keep_answers(answer)

    def _keep_answers(self, answer: Piece | None) -> None:
        """The teacher's answer, what it is as a distribution, and the student's two stay until the backward pass."""
        draft, last = self._model.draft, self._model.products[-1].step
        ends = list(draft.phase(Phase.BACKWARD))
        if answer is None or not ends:
            return
        end = ends[min(1, len(ends) - 1)]
        end.events.append(Event(answer, allocates=False))
        for _ in range(2):
            draft.hold(replace(answer), begin=last, end=end)
