"""One sentence for the end of a run: what happened, what it cost, and what to try next, by the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memfit.units import format_bytes, format_count, format_excess

if TYPE_CHECKING:
    from memfit.running.scripts.launch import Outcome

_MUCH, _LITTLE = 0.1, 0.02  # of the time, spent waiting for copies
_FEW = 6  # iterations: with as many of one kind a plan is in force, even where the tier compresses
_OFTEN = 0.5  # of the iterations: a plan that held for fewer did not hold
_LARGE = 0.1  # of the budget, taken by memfit's own records


def sentence(outcome: Outcome) -> str:
    """Return what happened, what it cost and what to try next."""
    parts = [_happened(outcome), _host(outcome)]
    if advice := _next(outcome):
        parts.append(f"next: {advice}")
    return "; ".join(parts)


def _happened(outcome: Outcome) -> str:
    stats = outcome.stats
    did, noun = ("made", "forward pass") if outcome.forward_only else ("trained", "iteration")
    made = f"{did} {format_count(stats.iterations, noun)}{_limit(outcome)}"
    parts = [made if outcome.exit_code == 0 else f"the script failed ({outcome.exit_code}); it had {made}"]
    if stats.budget_bytes:
        parts.append(f"{outcome.planned_iterations} by a plan")
        parts.append(f"{100 * _waited(outcome):.0f} % of the time waiting for copies")
    return ", ".join(parts)


def _limit(outcome: Outcome) -> str:
    stats, limit = outcome.stats, outcome.stats.budget_bytes
    if not limit:
        return " without a limit"
    peak = outcome.peak_above
    share = f" ({round(100 * limit / peak)} % of the peak)" if peak else ""
    within = f"in {format_bytes(stats.peak_footprint_bytes)} of" if stats.peak_footprint_bytes > limit else "within"
    return f" {within} {format_bytes(limit)}{share}"


def _host(outcome: Outcome) -> str:
    tier = f", {format_bytes(outcome.tier_host_bytes)} of it the tier" if outcome.tier_host_bytes else ""
    return f"the process took {format_bytes(outcome.peak_rss_bytes)} of host memory{tier}"


def _waited(outcome: Outcome) -> float:
    """Return the part of the time that ops waited for copies; several threads may wait at once."""
    return min(outcome.waited_seconds / outcome.seconds, 1.0) if outcome.seconds > 0 else 0.0


def _next(outcome: Outcome) -> str:
    """Return what to try next, for the first cause that holds; empty if nothing is to be said."""
    stats = outcome.stats
    if outcome.exit_code != 0 or not stats.ops:
        return ""
    if not stats.budget_bytes:
        return _without_limit(outcome)
    if not _moved(outcome):
        return f"everything fitted; {_lower(outcome)}"
    if stats.growths:
        return (
            f"{format_excess(stats.growths, stats.peak_growth_bytes)}, to ops that did not fit: a larger budget, or "
            "--no-grow to have an error instead"
        )
    if outcome.planned_iterations < _OFTEN * stats.iterations and _waited(outcome) > _LITTLE:
        return _without_plan(outcome)
    if _waited(outcome) > _MUCH:
        return f"a larger budget{_faster(outcome)}; memfit trace and memfit curve foresee what each budget costs"
    if stats.record_bytes > _LARGE * stats.budget_bytes:
        return f"memfit's own records took {format_bytes(stats.record_bytes)}: leave that much beside the budget"
    if _waited(outcome) > _LITTLE:
        return "memfit trace and memfit curve foresee what more memory would save, and less would cost"
    return _lower(outcome)


def _without_limit(outcome: Outcome) -> str:
    if outcome.budget:
        return "more steps, or a budget in bytes, which holds from the first op on"
    peak = outcome.stats.peak_live_bytes
    return f"--budget 60%, which is about {format_bytes(0.6 * peak)}" if peak else ""


def _moved(outcome: Outcome) -> bool:
    stats = outcome.stats
    return bool(stats.bytes_out or stats.discards or stats.growths)


def _lower(outcome: Outcome) -> str:
    """Return a lower budget to try. How low it can be is not known here; the error for one that is too low tells."""
    stats = outcome.stats
    peak = outcome.peak_bytes or stats.peak_live_bytes
    share = 100 * min(stats.budget_bytes, peak) // max(peak, 1)
    lower = max(int(share * 0.8) // 5 * 5, 5)
    return f"a lower budget, as --budget {lower}%; memfit trace and memfit curve say how low it can be"


def _without_plan(outcome: Outcome) -> str:
    reasons = "; ".join(dict.fromkeys(outcome.unplanned))
    if reasons:
        return f"most iterations had no plan ({reasons}): a larger budget, or batches of fewer sizes"
    if outcome.stats.iterations < 2 * _FEW:
        return f"more steps: a plan needs about {_FEW} iterations of one kind, and copies are waited for until then"
    return "most iterations had no plan: batches of fewer sizes, so that iterations repeat themselves"


def _faster(outcome: Outcome) -> str:
    return ", a faster disk (--tier disk:PATH)" if "disk" in outcome.tier else ""
