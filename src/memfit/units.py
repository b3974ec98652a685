"""Parse and print bytes and budgets, and print durations.

Byte units are IEC (`KiB` = 1024 bytes) or SI (`KB` = 1000 bytes); case does not matter. A single letter
`k`, `m`, `g` or `t` is binary: `1.5g` = 1.5 GiB. No unit, or `b`, is bytes. Durations are microseconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from memfit import ranks
from memfit.errors import InputError

# Exponents of three digits at most, so that "1e999999999" cannot ask for a gigabyte of digits.
_QUANTITY = re.compile(
    r"""([+-]?)
        ([0-9]{1,40} (?:\.[0-9]{0,40})? | \.[0-9]{1,40})
        (e[+-]?[0-9]{1,3})?
        \s*
        ([a-zµμ%]*)""",
    re.IGNORECASE | re.VERBOSE,
)

_BINARY = {"k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_DECIMAL = {"k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BYTE_UNITS = {
    "": 1,
    "b": 1,
    **_BINARY,
    **{f"{letter}ib": size for letter, size in _BINARY.items()},
    **{f"{letter}b": size for letter, size in _DECIMAL.items()},
}
# Sizes travel through 64-bit signed integers in native code.
_MAX_BYTES = 2**63 - 1

_BYTES_REMEDY = 'write bytes as "2GiB" (1024-based), "512 MB" (1000-based), "1.5g" (1024-based) or 1073741824'
_BUDGET_REMEDY = 'write a budget as "60%" of the peak, or in bytes as "2GiB"'
_OF_A_NODE = "/node"  # behind the bytes that all processes of a machine have together


AUTO = "auto"
"""A run's budget that is what is free when it begins."""


def is_auto(value: str | int | None) -> bool:
    """Return whether `value` asks for as much as is free."""
    return isinstance(value, str) and value.strip().lower() == AUTO


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes the arena may have: either `bytes`, or a `fraction` in (0, 1] of the peak live bytes."""

    bytes: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.bytes is None) == (self.fraction is None):
            raise InputError("a budget is either bytes or a fraction of the peak", remedy=_BUDGET_REMEDY)

    def resolve(self, peak_bytes: int) -> int:
        """Return the budget in bytes, rounded down, if the live bytes peak at `peak_bytes`."""
        if self.bytes is not None:
            return self.bytes
        # The shortest decimal is what the user wrote: 29 % of 100 bytes is 29, not floor(28.999...).
        return math.floor(Fraction(repr(self.fraction)) * peak_bytes)


def parse_bytes(value: str | int | float) -> int:
    """Return `value` in bytes, rounded down: "2GiB", "512 MB", "1e9", 1024, "1.5g" (one letter is binary).

    Raises InputError if it is malformed, not positive, or past 2**63 - 1 bytes.
    """
    amount, unit = _split(value, "byte size", _BYTES_REMEDY)
    if unit not in _BYTE_UNITS:
        raise InputError(f"{value!r} is not a byte size", why=f"unknown unit {unit!r}", remedy=_BYTES_REMEDY)
    size_bytes = math.floor(amount * _BYTE_UNITS[unit])
    if not 0 < size_bytes <= _MAX_BYTES:
        why = "it is less than one byte" if size_bytes <= 0 else "it is more than 2**63 - 1 bytes"
        raise InputError(f"{value!r} is not a usable byte size", why=why, remedy=_BYTES_REMEDY)
    return size_bytes


def parse_budget(value: str | int) -> Budget:
    """Return the budget that `value` writes: "60%" (of the peak live bytes), or anything `parse_bytes` takes.

    "12GiB/node" is shared alike by the ranks of a machine (LOCAL_WORLD_SIZE); a process that is none has it all.

    Raises InputError if it is malformed, not positive, or more than 100 %.
    """
    if is_auto(value):
        why = "it is what is free when a run begins, and nothing is run here"
        raise InputError("a budget of 'auto' is for runs alone", why=why, remedy=_BUDGET_REMEDY)
    if isinstance(value, str) and value.strip().lower().endswith(_OF_A_NODE):
        return Budget(bytes=_part_of_a_node(value))
    if not isinstance(value, str) or not value.strip().endswith("%"):
        return Budget(bytes=parse_bytes(value))
    percent, unit = _split(value, "budget", _BUDGET_REMEDY)
    if unit != "%":
        raise InputError(f"{value!r} is not a budget", why=f"unknown unit {unit!r}", remedy=_BUDGET_REMEDY)
    fraction = float(percent / 100)
    if not 0 < fraction <= 1:
        why = "a percentage of the peak is above 0% and at most 100%"
        raise InputError(f"{value!r} is not a usable budget", why=why, remedy=_BUDGET_REMEDY)
    return Budget(fraction=fraction)


def _part_of_a_node(value: str) -> int:
    text = value.strip()[: -len(_OF_A_NODE)]
    remedy = 'write a node\'s budget in bytes: "12GiB/node"'
    if text.endswith("%") or is_auto(text):
        why = "a share of the peak, and what is free, are each process's own already"
        raise InputError(f"{value!r} is not a budget", why=why, remedy=remedy)
    size_bytes = parse_bytes(text) // ranks.local_world_size()
    if not size_bytes:
        raise InputError(f"{value!r} is not a usable budget", why="it is less than a byte a process", remedy=remedy)
    return size_bytes


def format_bytes(size_bytes: float) -> str:
    """Return `size_bytes` for people: "512 B", "1.50 KiB", "24.0 GiB" (1024-based, three digits)."""
    return _format(size_bytes, ("B", "KiB", "MiB", "GiB", "TiB"), 1024)


def format_least_bytes(size_bytes: int) -> str:
    """Return `size_bytes` as `format_bytes` does, but rounded up: what is read from it suffices."""
    text = format_bytes(size_bytes)
    if parse_bytes(text) >= size_bytes:
        return text
    number, unit = text.split()
    digits = len(number.partition(".")[2])
    return f"{float(number) + 10**-digits:.{digits}f} {unit}"


def format_count(number: int, noun: str) -> str:
    """Return a number of things, for people: "1 iteration", "3 forward passes"."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def format_excess(times: int, most_bytes: int) -> str:
    """Return how often the limit gave way, and that it was by `most_bytes` at most."""
    return f"the limit gave way {format_count(times, 'time')}, by {format_bytes(most_bytes)} at most"


def format_part(size_bytes: int, whole_bytes: int) -> str:
    """Return bytes and what part of `whole_bytes` they are, for people: "34.0 MiB, 65 %"."""
    return f"{format_bytes(size_bytes)}, {round(100 * size_bytes / max(whole_bytes, 1))} %"


def format_us(duration_us: float) -> str:
    """Return `duration_us` (microseconds) for people: "850 us", "1.20 ms", "3.40 s" (three digits)."""
    return _format(duration_us, ("us", "ms", "s"), 1000)


def format_share(share: float) -> str:
    """Return an added share for people: "+1.23 %", and "0.00 %" with no sign for what rounds to nothing."""
    return f"{100 * share:+.2f} %" if abs(share) >= 5e-5 else "0.00 %"


def _split(value: str | int | float, kind: str, remedy: str) -> tuple[Fraction, str]:
    """Return the exact number and the lower-case unit that `value` writes; raises InputError."""
    text = str(value).strip()
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if match is None:
        raise InputError(f"{value!r} is not a {kind}", why="it is not a number with a unit", remedy=remedy)
    sign, number, exponent, unit = match.groups()
    if sign == "-":
        raise InputError(f"{value!r} is not a {kind}", why="it is negative", remedy=remedy)
    return Fraction(f"{number}{exponent or ''}"), unit.lower()


def _format(amount: float, units: tuple[str, ...], base: int) -> str:
    """Return `amount` in the largest unit that leaves at least one, after rounding to what is shown."""
    scaled = float(amount)
    for index, unit in enumerate(units):
        shown = _three_digits(scaled, whole=index == 0 and base == 1024)
        if abs(float(shown)) < base or index == len(units) - 1:
            return f"{shown} {unit}"
        scaled /= base
    raise AssertionError("units is not empty")


def _three_digits(amount: float, *, whole: bool) -> str:
    magnitude = abs(amount)
    digits = 0 if whole or magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2
    return f"{amount:.{digits}f}"
