"""Runs groups of samples plainly, and in sessions with everything that may move moved before every op."""

from __future__ import annotations

import ctypes
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

import memfit
from memfit.running import engine
from running.stress.samples import Group
from running.stress.seen import Reader, Row, read_plainly, rows

BUDGET_BYTES = 1 << 30
STRESSES = ("evict", "move", "recompute", "split")
RUNS = (*STRESSES, "split")  # what is tried in one run, is split in the next
FILLS = (0x00, 0xA5)  # what new memory holds, complemented: a result that differs read what nobody wrote
PLAIN, MADE = "plain", "made"
_M_PERTURB = -6

Seen = dict[tuple[int, str], list[Row]]  # by sample and part
Place = tuple[str, str, int, str]  # how it runs, group, sample, part
Announce = Callable[[Place], None]
Left = frozenset[tuple[str, int, str]]  # parts that are not run at all: group, sample, part


@dataclass
class Report:
    """What a comparison found."""

    samples: int = 0  # with one part at least that was compared
    parts: int = 0
    unsteady: int = 0  # parts that differ between two plain runs, and are left out
    crashed: int = 0  # parts that end the process plainly, and are left out
    raised: int = 0  # parts that raise, plainly and under stress
    tensors: int = 0
    faults: list[str] = field(default_factory=list)
    testimonies: Counter[str] = field(default_factory=Counter)  # calls of operators that wrote as their schema says
    liars: Counter[str] = field(default_factory=Counter)  # of those that did not
    composed: Counter[str] = field(default_factory=Counter)  # calls of composites that wrote what they called wrote,
    opaque: Counter[str] = field(default_factory=Counter)  # and of those that wrote something themselves

    def add(self, other: Report) -> None:
        """Take in another report."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def counts(self) -> dict[str, int]:
        """Return the numbers alone."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}


class Comparison:
    """Compares groups, of each of which at most `most` samples are taken."""

    def __init__(self, most: int, left: Left = frozenset(), announce: Announce = lambda place: None) -> None:
        self.most, self.left, self.announce = most, left, announce

    def of(self, groups: list[Group]) -> Report:
        """Return what differs between plain runs and runs under stress."""
        report = Report()
        first, second = (self.plainly(groups, fill) for fill in FILLS)
        steady = {name: steady_parts(seen, second[name], report) for name, seen in first.items()}
        for stress in RUNS:
            for group, seen in zip(groups, self.under(stress, groups), strict=True):
                report.faults += faults(f"{stress}: {group.name}", steady[group.name], seen)
        count(steady.values(), report)
        self.testify(groups, report)
        return report

    def testify(self, groups: list[Group], report: Report) -> None:
        """Run all once more, to see what every operator writes to."""
        native = engine.load()
        native.set_witness(True)
        list(self.under("", groups))
        native.set_witness(False)
        for name, (calls, changed, _) in native.testimonies().items():
            report.testimonies[name] = calls - changed
            report.liars[name] = changed
        for name, (calls, opaque) in native.composites().items():
            report.composed[name] = calls - opaque
            report.opaque[name] = opaque

    def plainly(self, groups: list[Group], fill: int) -> dict[str, Seen]:
        """Run all without a session, with all new memory holding the same byte."""
        ctypes.CDLL(None).mallopt(_M_PERTURB, fill ^ 0xFF)
        return {group.name: self.run(PLAIN, group, read_plainly) for group in groups}

    def under(self, stress: str, groups: list[Group]) -> Iterator[Seen]:
        """Run all in one session."""
        with memfit.session(BUDGET_BYTES, "ram", device="cpu") as session, stressed(stress):
            for group in groups:
                yield self.run(stress, group, session.read_bytes)

    def run(self, how: str, group: Group, read: Reader) -> Seen:
        """Return all that is seen of a group's samples."""
        seen: Seen = {}
        seed()
        made = group.samples(self.most)
        for index in range(self.most):
            self.announce((how, group.name, index, MADE))
            try:
                sample = next(made)
            except StopIteration:
                break
            except Exception as error:  # what this build of torch cannot make; compared like the rest
                seen[index, MADE] = [raised(error)]
                break
            for name, part in sample.parts.items():
                if (group.name, index, name) not in self.left:
                    self.announce((how, group.name, index, name))
                    seen[index, name] = outcome(part, read)
        return seen


@contextmanager
def stressed(kind: str) -> Iterator[None]:
    """Have the engine evict or move whatever may move, before every op, and then what `make stress` asks for again."""
    native = engine.load()
    native.set_stress(kind)
    try:
        yield
    finally:
        native.set_stress(os.environ.get("MEMFIT_STRESS", ""))


def seed() -> None:
    """Begin every generator anew."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def outcome(part: Callable[[], Any], read: Reader) -> list[Row]:
    """Return what is seen of one part's result, or the name of what it raised."""
    try:
        return list(rows(part(), read))
    except Exception as error:
        return [raised(error)]


def raised(error: Exception) -> Row:
    """Return the row of an exception."""
    return ("raised", type(error).__name__, str(error)[:300])


def steady_parts(first: Seen, second: Seen, report: Report) -> Seen:
    """Return the parts that are the same in two plain runs."""
    steady = {key: found for key, found in first.items() if second.get(key) == found}
    report.unsteady += len(first) - len(steady)
    return steady


def faults(where: str, steady: Seen, seen: Seen) -> list[str]:
    """Return a line for every part that is not as it is plainly."""
    return [
        f"{where} #{index}: {part}: {first_difference(expected, seen.get((index, part), []))}"
        for (index, part), expected in steady.items()
        if seen.get((index, part)) != expected
    ]


def first_difference(expected: list[Row], found: list[Row]) -> str:
    """Return the first row that differs."""
    for old, new in zip(expected, found, strict=False):
        if old != new:
            return f"{old} became {new}"
    return f"{len(expected)} rows became {len(found)}"


def count(groups: Iterable[Seen], report: Report) -> None:
    """Count what was compared."""
    for steady in groups:
        report.samples += len({index for index, _ in steady})
        report.parts += len(steady)
        report.raised += sum(found[:1] != [] and found[0][0] == "raised" for found in steady.values())
        report.tensors += sum(len(found) for found in steady.values())
