"""`memfit run`: a script from start to end in a session, and the report on it."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from memfit.errors import MemfitError, NoLimitError
from memfit.files import load_plan
from memfit.files.document import check_folder, write_text
from memfit.ir import Trace
from memfit.messages import say, say_for_all
from memfit.ranks import this_rank, world_size
from memfit.running.engine.tiers import TierSpec
from memfit.running.host import peak_rss_bytes
from memfit.running.planned.ran import Ran
from memfit.running.scripts.advice import sentence
from memfit.running.scripts.inside import run_program
from memfit.running.scripts.script import Program, as_program, check_program
from memfit.running.session import Session, Stats
from memfit.units import format_bytes, format_part, format_us

_NAMED = 3  # storages that the summary names, of those that cannot be made again


@dataclass(frozen=True)
class Outcome:
    """The end of a script and the figures of its session."""

    exit_code: int
    stats: Stats
    signatures: Mapping[str, int]  # and how many iterations had each
    ran: Ran | None = None  # the plan that was in force at last, if it was asked for
    recorded: Trace | None = None  # the first whole iteration, if no plan was
    given_plan: str = ""  # "used", or why it was not; empty if no plan was passed
    budget: str = ""  # as it was asked for
    no_limit: str = ""  # why a share never became a limit; empty if it did, or none was asked for
    peak_bytes: int | None = None  # the peak that shares refer to
    planned_iterations: int = 0
    plan_searches: int = 0
    kept_plans: int = 0
    shared_plans: int = 0
    not_made_again: tuple[str, ...] = ()  # with the op and the reason
    unplanned: tuple[str, ...] = ()  # why kinds of iterations had no plan at last
    forward_only: bool = False  # whether iterations were forward passes without gradients
    tier: str = ""
    compresses: bool = False  # the tier does
    seconds: float = 0.0
    peak_rss_bytes: int = 0
    tier_host_bytes: int = 0  # the most that the tier took of the host's memory
    rank: int | None = None  # in a run of several

    def to_json(self) -> str:
        """Return everything as a JSON object."""
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: exit code, statistics, and how often each iteration signature was seen."""
        names = ("given_plan", "no_limit", "planned_iterations", "plan_searches", "kept_plans", "shared_plans",
                 "not_made_again", "unplanned", "forward_only", "tier", "seconds",
                 "peak_rss_bytes", "tier_host_bytes")  # fmt: skip
        return {
            "exit_code": self.exit_code,
            **self._rank(),
            **asdict(self.stats),
            "fragmentation": self.stats.fragmentation,
            "signatures": dict(self.signatures),
            **{name: getattr(self, name) for name in names},
        }

    def _rank(self) -> dict[str, int]:
        return {} if self.rank is None else {"rank": self.rank, "world_size": world_size()}

    @property
    def peak_above(self) -> int | None:
        """The peak, in bytes, if the budget is a share of it, and not more."""
        return None if (self.peak_bytes or 0) < self.stats.budget_bytes else self.peak_bytes

    @property
    def waited_seconds(self) -> float:
        """The time that ops waited for copies."""
        return self.stats.waited_ns / 1e9

    def summary(self) -> str:
        """Return what a person wants to know, in one sentence, and the figures in a line below."""
        s = self.stats
        kinds = f"{len(self.signatures)} kinds, {self.planned_iterations} by a plan"
        parts = [
            f"{self._limit()}, arena peak {format_bytes(s.peak_footprint_bytes)}, "
            f"peak of live tensors {format_bytes(s.peak_live_bytes)}",
            f"moved {format_bytes(s.bytes_out)} out and {format_bytes(s.bytes_in)} in (tier {self.tier}"
            f"{self._compressed()}) "
            f"over {s.iterations} iterations ({kinds})",
            f"waited {format_us(self.waited_seconds * 1e6)} of {self.seconds:.1f} s for copies",
            *self._made_again(),
            *(f"without a plan at last: {why}" for why in dict.fromkeys(self.unplanned)),
            f"peak RSS {format_bytes(self.peak_rss_bytes)}",
            f"memfit's own records {format_bytes(s.record_bytes)}",
        ]
        return f"memfit: {sentence(self)}\nmemfit: {'; '.join(parts)}"

    def _compressed(self) -> str:
        s = self.stats
        if not self.compresses:
            return ""
        return f": {format_bytes(s.bytes_stored)} written and {format_bytes(s.bytes_loaded)} read"

    def _made_again(self) -> list[str]:
        s, parts = self.stats, []
        if s.recomputations:
            took = f" in {format_us(s.recompute_ns / 1e3)}" if s.recompute_ns else ""
            parts.append(f"made {s.recomputations} storages again{took}")
        if self.not_made_again:
            parts.append(f"{len(self.not_made_again)} cannot be ({'; '.join(self.not_made_again[:_NAMED])})")
        return parts

    def _limit(self) -> str:
        limit = self.stats.budget_bytes
        if not limit:
            return "no budget took effect" if self.budget else "no budget"
        peak = self.peak_above
        return f"budget {format_part(limit, peak) if peak else format_bytes(limit)}"

    def missing_limit(self) -> NoLimitError | None:
        """Return the error for a share that never took effect; None if it did, or if no share was asked for."""
        return no_limit_error(self.budget, self.no_limit) if self.no_limit else None


def no_limit_error(budget: str, why: str, what: str = "the run had no limit") -> NoLimitError:
    """Return the error for a share of the peak that never took effect, and what follows from that."""
    return NoLimitError(
        f"the budget of {budget} never took effect: {what}",
        why=f"a share holds from the end of the first whole iteration on, and no iteration was whole: {why}",
        remedy="let it run more steps, or give the budget in bytes, which hold from the first op on",
    )


@dataclass(frozen=True)
class StatsEvery:
    """Statistics that are appended to `path` at the end of every `every`th iteration."""

    every: int
    path: str


def launch(
    script: Program | str,
    arguments: Sequence[str],
    budget: str | int | None,
    tier: str | None,
    *,
    device: str = "auto",
    stats_file: str | None = None,
    plan_file: str | None = None,
    moves: str = "joint",
    measures: bool = False,
    grow: bool | None = None,
    plan_cache: bool = True,
    split: str = "auto",
    partition: str = "torch",
    watch: bool = False,
    log: StatsEvery | None = None,
    map: str = "auto",
) -> Outcome:
    """Run `script` as `__main__` within `budget`, by the plan in `plan_file` if there is one.

    `measures`: the outcome has the last planned iteration as it was, otherwise the first. `moves`, `grow`, `map`,
    `plan_cache`, `split` and `partition` are as of `memfit.session`, `watch` and `log` as of its `watch` and
    `log_stats`.

    The script's own exceptions are reported as Python reports them and become its exit code. Raises
    InputError for a missing script, a malformed tier or an unwritable `stats_file` or `log`; BudgetError and
    TierError when the script was ended by one.
    """
    program = as_program(script)
    check_program(program)
    if stats_file is not None:
        check_folder(stats_file)
        stats_file = os.path.abspath(stats_file)  # wherever the script goes
    plan = None if plan_file is None else load_plan(plan_file)
    if plan is not None and budget is None:
        budget = plan.budget_bytes
    session = Session(budget, tier, device=device, script=str(program), plan=plan or True, moves=moves,
                      measures=measures, announce=None if budget is None else _announce, grow=grow,
                      plan_cache=plan_cache, map=map, split=split, partition=partition)  # fmt: skip
    logged = None if log is None else session.log_stats(log.path, log.every)

    @contextmanager
    def watched() -> Iterator[None]:
        with logged or nullcontext(), session.watch() if watch else nullcontext():
            yield

    failure, code, was_rank = None, 0, this_rank() is not None
    try:
        code = run_program(program, arguments, session, watched)
    except MemfitError as error:
        failure, code = error, error.exit_code
        if session.began is None:
            raise
    outcome = outcome_of(session, code, budget, measures)
    if not was_rank and outcome.rank is not None:
        _tell_of_others(program)
    try:
        if stats_file is not None:
            write_text(stats_file, json.dumps(outcome.as_dict(), indent=1) + "\n")
    finally:
        if failure is not None:
            raise failure
    return outcome


def _announce(text: str) -> None:
    say_for_all(f"memfit: {text}")


def _tell_of_others(program: Program) -> None:
    """Say that the script has begun a group of processes of which nobody had told memfit."""
    say(
        f"memfit: warning: the script has begun a group of {world_size()} processes of which memfit was not told: "
        "those that it has started ran without a budget; start them all with torchrun --nproc-per-node N -m memfit run "
        f"... {shlex.join(program.words())}, or set RANK and WORLD_SIZE for each"
    )


def outcome_of(session: Session, code: int, budget: str | int | None, measures: bool = False) -> Outcome:
    """Return the outcome of a session that has just ended, with the script's exit code and the budget it asked for.

    `measures`: with the plan that was in force at last, or the first iteration if none was.
    """
    ran = session.what_ran() if measures else None
    return Outcome(
        code,
        session.stats,
        session.signature_counts,
        ran,
        session.recorded if measures and ran is None else None,
        session.given_plan.sentence,
        budget="" if budget is None else str(budget),
        no_limit=session.why_no_limit if session.stats.ops else "",  # as after --help: there was nothing to limit
        peak_bytes=session.peak_bytes if session.stats.budget_bytes else None,
        planned_iterations=session.planned_iterations,
        plan_searches=session.plan_searches,
        kept_plans=session.kept_plans,
        shared_plans=session.shared_plans,
        not_made_again=session.not_made_again,
        unplanned=session.unplanned,
        forward_only=session.forward_only,
        tier=str(session.tier),
        compresses=session.tier.compress,
        seconds=time.monotonic() - (session.began or 0.0),
        peak_rss_bytes=peak_rss_bytes(),
        tier_host_bytes=_host_bytes(session.tier, session.stats.tier_footprint_bytes),
        rank=this_rank(),
    )


def _host_bytes(tier: TierSpec, used_bytes: int) -> int:
    """Return what a tier, whose addresses were used up to `used_bytes`, took of the host's memory."""
    if tier.kind != "ram":
        return 0
    return min(used_bytes, tier.capacity_bytes) if tier.folder else used_bytes
