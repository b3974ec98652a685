"""`memfit trace SCRIPT -o FILE`: record one iteration."""

from __future__ import annotations

import argparse
import json
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `trace` subcommand."""
    parser = subparsers.add_parser(
        "trace",
        help="record one iteration of a script to a file",
        usage="memfit trace SCRIPT -o FILE [--json] [-- ARGS ...]",
    )
    parser.add_argument("script", metavar="SCRIPT", help="a training script, as it is")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the trace (.gz: packed)")
    parser.add_argument("--json", action="store_true", help="print what was recorded as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the script until its first whole iteration has ended, and save that."""
    from memfit.cli.next_step import print_next
    from memfit.files import save_trace
    from memfit.files.document import check_folder
    from memfit.running.record import record_script

    check_folder(args.output)
    trace = record_script(args.script, args.arguments)
    save_trace(trace, args.output)
    about = {"file": args.output, "ops": len(trace.ops), "storages": len(trace.storages)}
    if args.json:
        print(json.dumps(about | {"signature": trace.signature}))
        return 0
    print(f"{about['ops']} ops on {about['storages']} storages written to {args.output}")
    print_next(f"memfit info {shlex.quote(args.output)}")
    return 0
