"""`memfit run`: a script from start to end in a session, and what to report of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from memfit.errors import MemfitError
from memfit.files import load_plan
from memfit.files.document import check_folder, write_text
from memfit.ir import Timeline
from memfit.running.engine_plan import EnginePlan
from memfit.running.script import check_script, exit_code_of, run_as_main
from memfit.running.session import Session, Stats
from memfit.units import format_bytes


@dataclass(frozen=True)
class Outcome:
    """How a script ended and what its session did."""

    exit_code: int
    stats: Stats
    signatures: Mapping[str, int]  # and how many iterations had each
    planned: EnginePlan | None = None
    measured: Timeline | None = None
    given_plan: str = ""  # "used", or why it was not; empty if there was none

    def to_json(self) -> str:
        """Return everything as a JSON object."""
        return json.dumps(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Return plain data: exit code, statistics, and how often each iteration signature was seen."""
        fragmentation = self.stats.fragmentation
        return {
            "exit_code": self.exit_code,
            **asdict(self.stats),
            "fragmentation": fragmentation,
            "signatures": dict(self.signatures),
            "given_plan": self.given_plan,
        }

    def summary(self) -> str:
        """Return one line for a person."""
        s = self.stats
        budget = f"budget {format_bytes(s.budget_bytes)}, " if s.budget_bytes else "no budget took effect, "
        return (
            f"memfit: {budget}arena peak {format_bytes(s.peak_footprint_bytes)}, "
            f"peak of live tensors {format_bytes(s.peak_live_bytes)}; "
            f"moved {format_bytes(s.bytes_out)} out and {format_bytes(s.bytes_in)} in "
            f"over {s.iterations} iterations ({len(self.signatures)} kinds)"
        )


def launch(
    script: str,
    arguments: Sequence[str],
    budget: str | int | None,
    tier: str | None,
    *,
    device: str = "auto",
    stats_file: str | None = None,
    plan_file: str | None = None,
    measures: bool = False,
) -> Outcome:
    """Run `script` as `__main__` within `budget`, by the plan in `plan_file` if there is one.

    `measures`: the outcome has the last planned iteration as it was.

    The script's own exceptions are reported as Python reports them and become its exit code. Raises
    InputError for a missing script, a malformed tier or an unwritable `stats_file`; BudgetError and
    TierError when the script was ended by one.
    """
    check_script(script)
    if stats_file is not None:
        check_folder(stats_file)
    plan = None if plan_file is None else load_plan(plan_file)
    if plan is not None and budget is None:
        budget = plan.budget_bytes
    session = Session(budget, tier, device=device, script=script, plan=plan or True, measures=measures)
    code = 0
    try:
        with session:
            run_as_main(script, arguments)
    except MemfitError:
        raise
    except BaseException as error:  # the script's own: reported, and its exit code passed on
        code = exit_code_of(error)
    outcome = Outcome(code, session.stats, session.signature_counts, session.planned, session.measured,
                      session.given_plan)  # fmt: skip
    if stats_file is not None:
        write_text(stats_file, json.dumps(outcome.as_dict(), indent=1) + "\n")
    return outcome
