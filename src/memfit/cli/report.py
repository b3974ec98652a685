"""`memfit report TRACE [PLAN|STATS] -o report.html`: pictures of an iteration's memory in one file."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.comparing.page import Asked
    from memfit.files.document import Fields

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `report` subcommand."""
    parser = subparsers.add_parser(
        "report",
        help="draw an iteration's memory and a plan, as one HTML file",
        usage="memfit report TRACE [PLAN] [STATS] -o OUT.html [...]",
    )
    parser.add_argument("file", metavar="TRACE", help="a trace, as `memfit trace` writes it")
    parser.add_argument(
        "others", nargs="*", metavar="PLAN STATS", help="a plan for it, as `memfit plan` writes it, and the statistics "
        "of a run, as `memfit run --stats` writes them"
    )  # fmt: skip
    parser.add_argument("--budget", metavar="B", help='plan for it: bytes, or "60%%" of the peak')
    parser.add_argument("--machine", metavar="M", help="a profile or a file (default: that of PLAN, otherwise pcie4)")
    parser.add_argument(
        "--points", default=8, type=int, metavar="N", help="budgets of the what-if curve; 0 for none (default: 8)"
    )
    parser.add_argument(
        "--against", metavar="FILE", help="another trace, a torch memory snapshot or a table of lifetimes, to compare "
        "the peaks with"
    )  # fmt: skip
    parser.add_argument("--effort", default=0.5, type=float, metavar="SECONDS", help="of each search (default: 0.5)")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.html", help="the file to write")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.set_defaults(run=run)
    vars(parser)["takes_words_anywhere"] = True


def run(args: argparse.Namespace) -> int:
    """Write the report; raises InputError, UsageError, and BudgetError if no plan meets the budget."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.page import page_effort, page_of
    from memfit.files import find_machine, load_plan, load_trace
    from memfit.files.document import check_folder, write_text
    from memfit.progress import working
    from memfit.reporting.page import to_html
    from memfit.simulate import load_bytes
    from memfit.units import parse_budget

    plan_file, stats = _plan_and_stats(args.others)
    _check(args, plan_file)
    check_folder(args.output)
    trace = load_trace(args.file)
    plan = None if plan_file is None else load_plan(plan_file)
    machine = find_machine(args.machine or (plan.machine if plan else "pcie4"))
    budget = None if args.budget is None else parse_budget(args.budget).resolve(int(load_bytes(trace).max()))
    asked = _asked(args, stats)
    with working("planning", page_effort(trace, budget, asked)):
        page = page_of(trace, machine, file=args.file, budget_bytes=budget, plan=plan, asked=asked)
    write_text(args.output, to_html(page))
    print(page.head.verdict)
    print_next(f"open {shlex.quote(args.output)} in a browser")
    return 0


def _plan_and_stats(words: list[str]) -> tuple[str | None, Fields | None]:
    """Return the plan's file and the statistics among the files `words`, told apart by what is in them."""
    from memfit.errors import UsageError
    from memfit.files.stats import stats_in

    found = [(word, stats_in(word)) for word in words]
    stats = [fields for _, fields in found if fields is not None]
    plans = [word for word, fields in found if fields is None]
    if len(stats) > 1 or len(plans) > 1:
        raise UsageError(
            f"memfit report takes one plan and one run's statistics, not {shlex.join(words)}",
            remedy="memfit report TRACE PLAN STATS -o report.html; another trace goes behind --against",
        )
    return next(iter(plans), None), next(iter(stats), None)


def _check(args: argparse.Namespace, plan: str | None) -> None:
    from memfit.errors import UsageError

    if plan is not None and args.budget is not None:
        why = "a plan is for the budget that it was made for"
        raise UsageError("a plan's file and --budget exclude each other", why=why, remedy="leave one of them out")
    if args.points < 0 or args.points == 1:
        raise UsageError(f"--points is {args.points}", why="a curve has two or more", remedy="--points 8 (0: no curve)")
    if os.path.exists(args.output) and not args.force:
        raise UsageError(f"{args.output} is there already", remedy="another name, or --force to write over it")


def _asked(args: argparse.Namespace, stats: Fields | None) -> Asked:
    from memfit.comparing.page import Asked, run_figures
    from memfit.files import load_lifetimes

    against = None if args.against is None else (os.path.basename(args.against), load_lifetimes(args.against))
    return Asked(args.points, args.effort, against, None if stats is None else run_figures(stats))
