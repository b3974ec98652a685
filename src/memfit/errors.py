"""One exception tree. Each message says what happened, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class MemfitError(Exception):
    """Base of every error that memfit raises on purpose.

    Arguments:
        what: The event. It is enough alone: native code raises these errors with one finished text.
        why: The cause, if it is known.
        remedy: The next step for the user.

    Attributes:
        exit_code: The exit code of the command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        # One positional argument in `args` keeps the exception picklable.
        super().__init__(_message(what, why, remedy))


class InputError(MemfitError):
    """A file or a value from outside is malformed."""


class UsageError(MemfitError):
    """The command line, or a call, asks for something that does not exist."""

    exit_code = 2


class BudgetError(MemfitError, RuntimeError):
    """The budget cannot be met; the fields say what sets the smallest feasible one.

    From an op it is a `torch.OutOfMemoryError` as well.

    Attributes:
        required_bytes: The smallest feasible budget (bytes), or None when it is unknown.
        op: The name of the op that sets it.
        source: The line that called the op, as "file.py:12".
        tensors: One description for each storage of the op's working set.
    """

    exit_code = 3

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        remedy: str = "",
        required_bytes: int | None = None,
        op: str = "",
        source: str = "",
        tensors: Sequence[str] = (),
    ) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.required_bytes = required_bytes
        self.op = op
        self.source = source
        self.tensors = tuple(tensors)


class AccessError(MemfitError, RuntimeError):
    """A call that is neither an op nor a door memfit guards asked for bytes that had been moved out.

    Attributes:
        source: The line of the script, as "file.py:12".
        door: The call that asked.
    """

    exit_code = 6

    def __init__(self, what: str, *, why: str = "", remedy: str = "", source: str = "", door: str = "") -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.source = source
        self.door = door


class VerificationError(MemfitError):
    """A run under the budget did not give the result of the plain run."""

    exit_code = 4


class NoLimitError(MemfitError):
    """A share of the peak never became a limit: the program ended before its first whole iteration did."""

    exit_code = 5


class TierError(MemfitError, RuntimeError):
    """A slower tier (host or disk) could not take or give back bytes."""


class EngineError(MemfitError):
    """The native engine could not be built or loaded."""


class InternalError(MemfitError):
    """memfit's own code failed while it ran a program: a fault of memfit's, not of the program."""

    exit_code = 7


def _message(what: str, why: str, remedy: str) -> str:
    lines = [what]
    if why:
        lines.append(f"  why: {why}")
    if remedy:
        lines.append(f"  try: {remedy}")
    return "\n".join(lines)
