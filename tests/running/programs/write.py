"""Random straight-line torch programs: written as source while they run plainly, then run again as they stand.

A program is a list of lines of Python, so that what falsifies a test can be pasted into a file and run. Each step of
a hypothesis draw chooses a template and a seed that fills its holes from the tensors alive then.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from running.programs.calls import may_grow
from running.programs.contents import is_leaf, read_plainly
from running.programs.run import Run
from running.programs.templates import SHAPES

MOST_ELEMENTS = 4096


@dataclass
class Writer:
    """Turns steps into lines by running what it has written so far."""

    run: Run = field(default_factory=Run)
    lines: list[str] = field(default_factory=list)
    _names: int = 0
    _last_name: str = ""

    def step(self, template: str, seed: int) -> None:
        """Write and run one line, unless no tensor alive fits it."""
        self._random = random.Random(seed)
        try:
            line = re.sub(r"\{(\w+)(?::([\d,]+))?\}", self._fill, template)
        except LookupError:
            return
        self.lines.append(line)
        self.run.line(line)

    def _fill(self, hole: re.Match[str]) -> str:
        kind, shape = hole.groups()
        return self._shaped(shape) if shape else getattr(self, f"_{kind}")()

    def _choose(self, fits: Callable[[torch.Tensor], bool]) -> str:
        names = [n for n, t in self.run.tensors().items() if t.numel() <= MOST_ELEMENTS and fits(t)]
        self._last_name = self._random.choice(names)  # IndexError, a LookupError, when there is none
        return self._last_name

    def _new(self) -> str:
        self._names += 1
        self._last_name = f"t{self._names}"
        return self._last_name

    def _last(self) -> str:
        return self._last_name

    def _x(self) -> str:
        return self._choose(lambda t: True)

    def _f(self) -> str:
        return self._choose(lambda t: t.is_floating_point() and t.numel() > 0)

    def _c(self) -> str:
        self._last_name = self._random.choice(list(self.run.tensors(composite=True)))
        return self._last_name

    def _o(self) -> str:
        return self._choose(lambda t: t.dtype == torch.float32 and not t.requires_grad and may_grow(t))

    def _leaf(self) -> str:
        return self._choose(lambda t: t.requires_grad and is_leaf(t))

    def _g(self) -> str:
        return self._choose(lambda t: t.requires_grad and not is_leaf(t))

    def _b(self) -> str:
        like, before = self.run.names[self._last_name], self._last_name
        if self._random.random() < 0.2:
            return "0.5"
        other = self._choose(lambda t: t.shape == like.shape and t.is_floating_point())
        self._last_name = before
        return other

    def _shape(self) -> str:
        return self._random.choice(SHAPES)

    def _n(self) -> str:
        return str(self._random.choice((1, 2, 9, 30, 257)))

    def _shaped(self, shape: str) -> str:
        count = math.prod(map(int, shape.split(",")))
        try:
            name = self._choose(lambda t: t.dtype == torch.float32 and t.numel() >= count)
        except LookupError:
            return f"torch.randn({shape})"
        return f"{name}.reshape(-1)[:{count}].reshape({shape})"


@dataclass(frozen=True)
class Program:
    """Lines, and what a plain run of them showed."""

    lines: tuple[str, ...]
    seen: list[tuple[int, Any]]
    final: dict[str, Any]

    def __repr__(self) -> str:
        return "\n".join(["", *(f"{number:3}  {line}" for number, line in enumerate(self.lines, 1))])

    def differences(self, seen: list[tuple[int, Any]], final: dict[str, Any]) -> list[str]:
        """Return where another run of the same lines differs, nothing if it is the same bit for bit."""
        unequal = [f"line {a[0]}: {a[1]!r} became {b!r}" for a, b in zip(self.seen, seen, strict=False) if a != b]
        if len(seen) != len(self.seen):
            unequal.append(f"{len(self.seen)} values were seen, then {len(seen)}")
        if final.keys() != self.final.keys():
            unequal.append(f"other tensors: {sorted(self.final.keys() ^ final.keys())}")
        unequal += [f"{name} is {self.final[name]}, then {value}" for name, value in final.items()
                    if name in self.final and value != self.final[name]]  # fmt: skip
        return unequal[:5]


def write(steps: Iterable[tuple[str, int]]) -> Program:
    """Return the program that `steps` (a template and a seed each) describe."""
    writer = Writer()
    writer.step("{new} = torch.randn(4, 6)", 0)
    for template, seed in steps:
        writer.step(template, seed)
    run = Run().all(writer.lines)  # as in a session: the writer has asked the tensors for more meanwhile
    return Program(tuple(writer.lines), run.seen, run.final(read_plainly))
