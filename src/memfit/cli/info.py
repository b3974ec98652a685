"""`memfit info FILE`: the memory use of a recorded iteration."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.reporting.info import TraceInfo

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `info` subcommand."""
    parser = subparsers.add_parser("info", help="report the memory use of a recorded iteration")
    parser.add_argument("file", metavar="FILE", help="a trace, as `memfit trace` writes it")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report on `args.file`; raises InputError if it is not a trace."""
    from memfit.cli.next_step import print_next
    from memfit.cli.program import command_of
    from memfit.comparing.trace_info import describe_trace
    from memfit.files import load_trace
    from memfit.reporting.info import to_text
    from memfit.reporting.show import show

    info = describe_trace(load_trace(args.file))
    show(info, to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit run --budget {_feasible_percent(info)}% {command_of(info.script)}")
    return 0


def _feasible_percent(info: TraceInfo) -> int:
    """Return 60, or the next multiple of five that the minimum budget allows, as a percentage of the peak."""
    needed = -(-info.minimum.budget_bytes * 100 // max(info.peak_bytes, 1))
    return min(max(60, -(-needed // 5) * 5), 100)
