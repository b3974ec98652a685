"""`memfit compare FILE`: how much memory each allocator takes for the same mallocs and frees."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `compare` subcommand."""
    parser = subparsers.add_parser("compare", help="replay a file's mallocs and frees in other systems' allocators")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a trace, a CSV of lifetimes (id,lower,upper,size) or a torch memory snapshot",
    )
    parser.add_argument("--allocators", default="all", metavar="A,B,C", help="which ones (default: all)")
    parser.add_argument("--device", type=int, metavar="N", help="which device of a snapshot (default: the busiest)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table; raises InputError for a malformed file and UsageError for an unknown allocator."""
    from memfit.cli.next_step import print_next
    from memfit.files import load_events
    from memfit.reporting.compare import chosen, compare, to_json

    allocators = chosen(args.allocators)
    comparison = compare(args.file, load_events(args.file, device=args.device), allocators)
    if args.json:
        print(to_json(comparison))
        return 0
    from memfit.reporting.text import print_comparison

    print_comparison(comparison)
    print_next(f"memfit compare --json {shlex.quote(args.file)}")
    return 0
