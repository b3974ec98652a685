"""`memfit trace SCRIPT -o FILE`: record one iteration."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `trace` subcommand."""
    from memfit.cli.program import add_program

    parser = subparsers.add_parser(
        "trace",
        help="record one iteration of a script to a file",
        usage="memfit trace SCRIPT|-m MODULE -o FILE [--split S] [--json] [-- ARGS ...]",
    )
    add_program(parser)
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="where to write the trace (.gz: gzipped)")
    parser.add_argument(
        "--split", choices=("never", "try"), default="never", help="whether large ops are tried in slices, which takes "
        "time: the trace then has the working sets that do for them (default: never)"
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a summary of the trace as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the script until its first whole iteration has ended, and save that."""
    from memfit.cli.next_step import print_next
    from memfit.cli.program import program_of
    from memfit.files import save_trace
    from memfit.files.document import check_folder
    from memfit.ranks import file_of_rank
    from memfit.reporting.recording import RecordingReport, to_text
    from memfit.reporting.show import show
    from memfit.running.scripts.record import record_script

    args.output = file_of_rank(args.output)
    check_folder(args.output)
    output = os.path.abspath(args.output)  # wherever the script goes
    trace = record_script(*program_of(args), split=args.split)
    save_trace(trace, output)
    report = RecordingReport(args.output, len(trace.ops), len(trace.storages), trace.signature)
    show(report, to_text, as_json=args.json, indent=None)
    if not args.json:
        print_next(f"memfit info {shlex.quote(args.output)}")
    return 0
