"""`memfit compare FILE`: the same mallocs and frees in each allocator, or the same trace under each policy."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `compare` subcommand."""
    parser = subparsers.add_parser("compare", help="compare allocators on a file, or policies on a trace")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a trace, a CSV of lifetimes (id,lower,upper,size) or a torch memory snapshot",
    )
    parser.add_argument("--allocators", default="all", metavar="A,B,C", help="the allocators to compare (default: all)")
    parser.add_argument("--device", type=int, metavar="N", help="the device of a snapshot (default: the busiest)")
    parser.add_argument("--budgets", metavar="80,60,40%", help="compare policies at these budgets instead")
    parser.add_argument("--policies", default="all", metavar="A,B,C", help="the policies to compare (default: all)")
    parser.add_argument("--machine", default="pcie4", metavar="M", help="a profile or a file (default: pcie4)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; raises InputError for a malformed file, UsageError for an unknown allocator or policy."""
    return _policies(args) if args.budgets else _allocators(args)


def _policies(args: argparse.Namespace) -> int:
    from memfit.cli.next_step import print_next
    from memfit.comparing.policies import choose_policies, compare_policies, parse_budgets
    from memfit.files import find_machine, load_trace
    from memfit.reporting.policies import to_text
    from memfit.reporting.show import show
    from memfit.simulate import load_bytes

    policies, machine = choose_policies(args.policies), find_machine(args.machine)
    trace = load_trace(args.file)
    budgets = parse_budgets(args.budgets, int(load_bytes(trace).max()))
    comparison = compare_policies(args.file, trace, machine, budgets, policies)
    show(comparison, to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit curve {shlex.quote(args.file)} --machine {shlex.quote(args.machine)}")
    return 0


def _allocators(args: argparse.Namespace) -> int:
    from memfit.cli.next_step import print_next
    from memfit.comparing.allocators import choose_allocators, compare_allocators
    from memfit.files import load_events
    from memfit.reporting.allocators import to_text
    from memfit.reporting.show import show

    allocators = choose_allocators(args.allocators)
    comparison = compare_allocators(args.file, load_events(args.file, device=args.device), allocators)
    show(comparison, to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit compare --json {shlex.quote(args.file)}")
    return 0
