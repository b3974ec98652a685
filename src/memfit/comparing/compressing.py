"""The figures of `memfit whatif TRACE --with ...`: a trace as it is, with each technique, and with all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memfit.comparing.compression import Chosen, compressed, library_lines
from memfit.comparing.whatif import case_of
from memfit.ir import Trace
from memfit.machine import Machine
from memfit.reporting.compression import Applied, Compression
from memfit.units import Budget


def describe_compression(
    name: str, trace: Trace, chosen: Sequence[Chosen], machine: Machine, budget: Budget | None, *, effort: float = 0.5
) -> Compression:
    """Return what techniques take off a trace.

    Arguments:
        name: The trace's file.
        trace: The recorded iteration.
        chosen: The techniques.
        machine: The links of the tier.
        budget: The budget; None for none. A share is one of the peak as it is.
        effort: The seconds of each search for swaps.

    Returns:
        The report.

    Raises:
        UsageError: The trace does not have the shapes of its tensors.
    """
    as_it_is = case_of(trace, {"trace": name}, machine, budget, effort=effort)
    fixed = None if as_it_is.budget_bytes is None else Budget(bytes=as_it_is.budget_bytes)
    groups = [[each] for each in chosen] + ([list(chosen)] if len(chosen) > 1 else [])

    def applied(group: Sequence[Chosen]) -> Applied:
        made = compressed(trace, group)
        words = tuple(each.word for each in group)
        case = replace(case_of(made, {"trace": name}, machine, fixed, effort=effort), values={"with": ",".join(words)})
        if len(group) > 1:
            return Applied(words, case)
        technique = group[0].technique
        lines = tuple(library_lines(trace, group[0], chosen))
        return Applied(words, case, technique.library, lines, technique.about)

    return Compression(name, machine.name, as_it_is, tuple(applied(group) for group in groups))
