"""`memfit run SCRIPT`: train a script inside a budget."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.running.launch import Outcome

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `run` subcommand."""
    parser = subparsers.add_parser("run", help="train an unmodified script inside a byte budget")
    parser.add_argument(
        "--budget",
        metavar="B",
        help='bytes ("2GiB") or a share of the first whole iteration\'s peak ("60%%")',
    )
    add_tier(parser)
    add_device(parser)
    parser.add_argument("--stats", metavar="FILE", help="write what the session did to FILE as JSON")
    parser.add_argument("--plan", metavar="PLAN", help="run by this plan, as `memfit plan` writes it")
    parser.add_argument("--timeline", metavar="OUT.json", help="write what was predicted and measured, for Perfetto")
    parser.add_argument("--json", action="store_true", help="end with the statistics as JSON on standard error")
    parser.add_argument("script", metavar="SCRIPT", help="a training script, as it is")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments")
    parser.set_defaults(run=run)


def add_tier(parser: argparse.ArgumentParser) -> None:
    """Add --tier, which every command that swaps has."""
    parser.add_argument(
        "--tier", metavar="T", help="where bytes go that do not fit: ram, ram:BYTES, disk, disk:PATH or "
        "ram:BYTES+disk:PATH (default: disk on the CPU, ram on a GPU)"
    )  # fmt: skip


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, which every command that runs a script has."""
    parser.add_argument(
        "--device", default="auto", metavar="D", help="whose memory the budget is for: cpu, cuda or cuda:N "
        "(default: the current GPU if there is one, else the CPU)"
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the script and return its own exit code; raises BudgetError if the budget cannot be met."""
    from memfit.files.document import check_folder
    from memfit.running.launch import launch
    from memfit.running.script import die_as
    from memfit.units import parse_budget

    if args.budget is not None:
        parse_budget(args.budget)
    if args.timeline:
        check_folder(args.timeline)
    outcome = launch(args.script, args.arguments, args.budget, args.tier, device=args.device, stats_file=args.stats,
                     plan_file=args.plan, measures=args.timeline is not None)  # fmt: skip
    if args.timeline:
        _write_timelines(args.timeline, outcome)
    if args.json:
        print(outcome.to_json(), file=sys.stderr)
    else:
        print(outcome.summary(), file=sys.stderr)
    if outcome.exit_code < 0:
        die_as(outcome.exit_code)
    return outcome.exit_code


def _write_timelines(path: str, outcome: Outcome) -> None:
    from memfit.errors import UsageError
    from memfit.files.document import write_text
    from memfit.reporting.chrome import chrome_traces

    planned = outcome.planned
    if planned is None or planned.plan is None or planned.predicted is None:
        why = "no iteration was run by a plan that swaps"
        remedy = "lower the budget, or train for ten steps or more of one kind"
        raise UsageError(f"there is no timeline to write to {path}", why=why, remedy=remedy)
    timelines = {"predicted": planned.predicted}
    if outcome.measured is not None:
        timelines["measured"] = outcome.measured
    write_text(path, chrome_traces(planned.trace, planned.plan, timelines))
