"""`memfit explain TRACE [PLAN] [PATTERN]`: what a plan does, why, and what more memory would buy."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.ir import Plan, Trace
    from memfit.machine import Machine

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `explain` subcommand."""
    parser = subparsers.add_parser(
        "explain",
        help="say what sets a budget, what a plan does with each storage, and why",
        usage="memfit explain TRACE --budget B [PATTERN] [...]  (or TRACE PLAN [PATTERN] [...])",
    )
    parser.add_argument("file", metavar="TRACE", help="a trace, as `memfit trace` writes it")
    parser.add_argument(
        "others", nargs="*", metavar="PLAN PATTERN", help="a plan's file (default: plan swaps and recomputation), and "
        "storages to explain one by one: an id as '#12', a line as 'train.py:40' or '*model.py:*', or the op that made "
        "them as 'aten::mm' or 'conv*' (default: the plan as a whole)"
    )  # fmt: skip
    parser.add_argument("--budget", metavar="B", help='bytes, or "60%%" of the peak (default: that of PLAN)')
    parser.add_argument("--machine", metavar="M", help="a profile or a file (default: that of PLAN, otherwise pcie4)")
    parser.add_argument("--effort", default=0.5, type=float, metavar="SECONDS", help="of each search (default: 0.5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    vars(parser)["takes_words_anywhere"] = True


def run(args: argparse.Namespace) -> int:
    """Explain; raises InputError, UsageError, and BudgetError if no plan meets the budget."""
    from memfit.errors import UsageError
    from memfit.files import find_machine, load_plan, load_trace

    file, pattern = _plan_and_pattern(args.others)
    if file is None and args.budget is None:
        raise UsageError(
            "there is no budget to explain", remedy=f"memfit explain {shlex.quote(args.file)} --budget 60%"
        )
    if file is not None and args.budget is not None:
        why = "a plan is for the budget that it was made for"
        raise UsageError("a plan's file and --budget exclude each other", why=why, remedy="leave one of them out")
    trace = load_trace(args.file)
    plan = None if file is None else load_plan(file)
    machine = find_machine(args.machine or (plan.machine if plan else "pcie4"))
    if pattern is not None:
        return _storages(args, trace, machine, plan, pattern)
    return _whole(args, trace, machine, plan)


def _plan_and_pattern(words: list[str]) -> tuple[str | None, str | None]:
    """Return the plan's file and the pattern among `words`: a word that is the name of a file is that of the plan."""
    from memfit.errors import UsageError

    files = [word for word in words if os.path.isfile(word)]
    patterns = [word for word in words if not os.path.isfile(word)]
    if len(files) > 1 or len(patterns) > 1:
        raise UsageError(
            f"memfit explain takes one plan and one pattern, not {shlex.join(words)}",
            why="quote a pattern, or the shell replaces it by the files that match",
            remedy="memfit explain TRACE --budget 60% '*model.py:*'",
        )
    return next(iter(files), None), next(iter(patterns), None)


def _budget(args: argparse.Namespace, trace: Trace, plan: Plan | None) -> int:
    from memfit.simulate import load_bytes
    from memfit.units import parse_budget

    return plan.budget_bytes if plan else parse_budget(args.budget).resolve(int(load_bytes(trace).max()))


def _whole(args: argparse.Namespace, trace: Trace, machine: Machine, plan: Plan | None) -> int:
    from memfit.cli.next_step import print_next
    from memfit.comparing.explaining.plan import explain_plan
    from memfit.errors import BudgetError
    from memfit.reporting.explain import to_text
    from memfit.reporting.show import show

    report = explain_plan(trace, machine, _budget(args, trace, plan), plan=plan, effort=args.effort)
    show(report, to_text, as_json=args.json)
    if report.plan is None:
        raise BudgetError(report.refused)
    if not args.json and report.plan.lines:
        words = [] if plan else ["--budget", args.budget]
        words += ["--machine", args.machine] if args.machine else []
        largest = f"#{report.plan.lines[0].tensor.storage}"
        print_next(shlex.join(["memfit", "explain", args.file, *args.others, *words, largest]))
    return 0


def _storages(args: argparse.Namespace, trace: Trace, machine: Machine, plan: Plan | None, pattern: str) -> int:
    from memfit.comparing.explaining.carried import carry_out
    from memfit.comparing.explaining.plan import plan_for
    from memfit.comparing.explaining.storages import explain_storages, matching
    from memfit.reporting.explain_storage import to_text
    from memfit.reporting.show import show

    matching(trace, pattern)  # before anything takes long
    if plan is not None:
        carried = carry_out(trace, machine, plan)
    else:
        carried, _ = plan_for(trace, machine, _budget(args, trace, plan), effort=args.effort)
    show(explain_storages(carried, pattern), to_text, as_json=args.json)
    return 0
