"""`memfit plan TRACE --budget B`: the storages that leave the arena, and the times of their copies."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.ir import Plan, Trace
    from memfit.machine import Machine

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


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
        help="the policy that plans (default: memfit; memfit compare lists the others)",
    )
    parser.add_argument("--machine", default="pcie4", metavar="M", help="a profile or a file (default: pcie4)")
    parser.add_argument(
        "--addresses", action="store_true", help="find addresses too, and plan so that they fit the budget"
    )
    parser.add_argument("--effort", default=2.0, type=float, metavar="SECONDS", help="of memfit's search (default: 2)")
    parser.add_argument("-o", "--output", metavar="PLAN", help="write the plan (.gz: gzipped)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and report; raises InputError, UsageError, and BudgetError if no plan meets the budget."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.plans import report_plan
    from memfit.files import find_machine, load_trace, save_plan
    from memfit.files.document import check_folder
    from memfit.reporting.plans import to_text
    from memfit.reporting.show import show
    from memfit.simulate import simulate
    from memfit.validate_plan import require_valid_plan

    if args.output:
        check_folder(args.output)
    trace, machine = load_trace(args.file), find_machine(args.machine)
    plan = _plan(args, trace, machine)
    require_valid_plan(trace, plan)
    if args.output:
        save_plan(plan, args.output)
    show(report_plan(trace, plan, simulate(trace, machine, plan)), to_text, as_json=args.json)
    if not args.json:
        saved = shlex.quote(args.output or "PLAN")
        print_next(f"memfit simulate {shlex.quote(args.file)} {saved} --machine {shlex.quote(args.machine)}")
    return 0


def _plan(args: argparse.Namespace, trace: Trace, machine: Machine) -> Plan:
    from memfit.baselines.policies import find_policy
    from memfit.comparing.policies import choose_policies
    from memfit.planning.autoswap import plan_at_no_cost, plan_under_budget, plan_with_addresses, with_footprint
    from memfit.simulate import load_bytes
    from memfit.units import parse_budget

    (policy,) = choose_policies(args.policy)[:1]
    if args.budget is None:
        plan = plan_at_no_cost(trace, machine, effort=2 * args.effort).plan
        return with_footprint(trace, plan) if args.addresses else plan
    budget = parse_budget(args.budget).resolve(int(load_bytes(trace).max()))
    if policy == "memfit":
        planner = plan_with_addresses if args.addresses else plan_under_budget
        return planner(trace, machine, budget, effort=args.effort).plan
    plan = find_policy(policy)(trace, machine, budget)
    return with_footprint(trace, plan) if args.addresses else plan
