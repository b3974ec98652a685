"""Takes parts from a training as long as it still does what it is reduced for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from running.programs.training import Part, Training


def reduced(training: Training, still: Callable[[Training], bool]) -> Training:
    """Return the smallest training found for which `still` holds."""
    for smaller in _smaller(training):
        if still(smaller):
            return reduced(smaller, still)
    return training


def _smaller(training: Training) -> Iterator[Training]:
    parts = training.parts
    for at in range(len(parts) if len(parts) > 1 else 0):
        yield replace(training, parts=parts[:at] + parts[at + 1 :])
    for at, part in enumerate(parts):
        for simpler in {part._replace(call=""), part._replace(context=""), Part("chain", *part[1:])} - {part}:
            yield replace(training, parts=(*parts[:at], simpler, *parts[at + 1 :]))
    for field in fields(Training):
        if isinstance(field.default, str | tuple) and getattr(training, field.name) != field.default:
            yield replace(training, **{field.name: field.default})
