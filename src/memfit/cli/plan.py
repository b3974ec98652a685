"""`memfit plan TRACE --budget B`: the storages that leave the arena, and how and when they come back."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.comparing.planners import Found
    from memfit.ir import Trace
    from memfit.machine import Machine

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


_WISHES = {
    "keep": "what stays",
    "swap": "what may leave by copies only",
    "recompute": "what may only be dropped and made again",
}


def add_parser(subparsers: Subparsers) -> None:
    """Add the `plan` subcommand."""
    parser = subparsers.add_parser("plan", help="plan what leaves memory and when, for a recorded iteration")
    parser.add_argument("file", metavar="TRACE", help="a trace, as `memfit trace` writes it")
    parser.add_argument(
        "--budget", metavar="B", help='bytes, or "60%%" of the peak (default: the smallest at which no op waits)'
    )
    parser.add_argument(
        "--policy",
        default="memfit",
        metavar="P",
        help="what plans: memfit swaps and recomputes (default); swap or recompute only; or another system's policy",
    )
    for word, meaning in _WISHES.items():
        parser.add_argument(
            f"--{word}",
            action="append",
            default=[],
            metavar="PATTERN",
            help=f'{meaning}: a storage "#12", a line "model.py:40", or the op that allocates, "aten::relu*"',
        )
    parser.add_argument(
        "--map",
        choices=("auto", "never"),
        default="auto",
        help="whether ops that do not fit the budget may use storages where they wait (default: auto)",
    )
    parser.add_argument("--machine", default="pcie4", metavar="M", help="a profile or a file (default: pcie4)")
    parser.add_argument(
        "--addresses", action="store_true", help="find addresses too, and plan so that they fit the budget"
    )
    parser.add_argument(
        "--effort", default=2.0, type=float, metavar="SECONDS", help="of each of memfit's searches (default: 2)"
    )
    parser.add_argument("-o", "--output", metavar="PLAN", help="write the plan (.gz: gzipped)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and report; raises InputError, UsageError, and BudgetError if no plan meets the budget."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.plans import report_plan
    from memfit.files import find_machine, load_trace, save_plan
    from memfit.files.document import check_folder
    from memfit.planning.joint.judged import judged
    from memfit.progress import working
    from memfit.reporting.plans import to_text
    from memfit.reporting.show import show

    if args.output:
        check_folder(args.output)
    trace, machine = load_trace(args.file), find_machine(args.machine)
    with working("planning", _effort(args, trace)):
        found = _plan(args, trace, machine)
    result = judged(trace, machine, found.plan)
    if args.output:
        save_plan(found.plan, args.output)
    show(report_plan(trace, result, found.bound_us), to_text, as_json=args.json)
    if not args.json:
        saved = shlex.quote(args.output or "PLAN")
        print_next(f"memfit simulate {shlex.quote(args.file)} {saved} --machine {shlex.quote(args.machine)}")
    return 0


def _effort(args: argparse.Namespace, trace: Trace) -> float:
    """Return the seconds of all searches. Other systems' policies, and addresses that do not fit, may take longer."""
    from memfit.comparing.planners import OURS
    from memfit.planning.joint.plan import joint_effort
    from memfit.planning.joint.program import Moves

    if args.budget is None:
        return 2 * float(args.effort)
    joint = OURS.get(args.policy) not in (None, Moves.SWAP)
    searches = joint_effort(trace, args.effort) if joint else float(args.effort)
    return searches + (float(args.effort) if args.addresses else 0.0)


def _plan(args: argparse.Namespace, trace: Trace, machine: Machine) -> Found:
    from memfit.comparing.planners import Asked, Found, choose_planners, footprinted, plan_by
    from memfit.planning.autoswap import plan_at_no_cost
    from memfit.planning.joint.wishes import wishes_of, without_swaps
    from memfit.simulate import load_bytes
    from memfit.units import parse_budget

    (policy,) = choose_planners(args.policy)[:1]
    wishes = wishes_of(trace, keep=args.keep, swap=args.swap, recompute=args.recompute)
    if args.budget is None:
        plan = plan_at_no_cost(without_swaps(trace, wishes.never_swapped), machine, effort=2 * args.effort).plan
        return Found(footprinted(trace, plan) if args.addresses else plan)
    budget = parse_budget(args.budget).resolve(int(load_bytes(trace).max()))
    maps = args.map == "auto"
    return plan_by(policy, Asked(trace, machine, budget, args.effort, args.addresses, wishes, maps))
