"""Choosing swaps until what stays has addresses within the budget: where these leave gaps, more has to leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Made]):
    """The result for a limit, and the bytes it needs with addresses."""

    needed_bytes: int
    made: Made


@dataclass(frozen=True, slots=True)
class Infeasible:
    """No choice of swaps meets the limit; `least_bytes` is the least that one meets."""

    least_bytes: int


def fit_within(
    budget_bytes: int, attempt: Callable[[int], Fitted[Made] | Infeasible | None], *, rounds: int
) -> Made | None:
    """Return the first that `attempt` makes, given a limit in bytes, which needs no more than the budget.

    What needs too much is tried again with a limit lower by as much, and by four times as much each time that this has
    not changed what is needed: storages are larger than a few bytes. `attempt` may give up by returning None; None is
    returned then, and when `rounds` attempts have failed.
    """
    limit_bytes, needed_bytes, cut_bytes = budget_bytes, 0, 0
    for _ in range(rounds):
        tried = attempt(limit_bytes)
        if tried is None:
            return None
        if isinstance(tried, Infeasible):
            # Lowered too far: there may still be a choice between here and the limit before.
            if tried.least_bytes > budget_bytes or limit_bytes >= tried.least_bytes:
                return None
            limit_bytes = tried.least_bytes
        elif tried.needed_bytes <= budget_bytes:
            return tried.made
        else:
            beyond_bytes = tried.needed_bytes - budget_bytes
            cut_bytes = max(beyond_bytes, 4 * cut_bytes) if tried.needed_bytes == needed_bytes else beyond_bytes
            limit_bytes, needed_bytes = limit_bytes - cut_bytes, tried.needed_bytes
    return None
