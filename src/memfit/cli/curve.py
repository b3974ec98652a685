"""`memfit curve TRACE`: the time that each amount of memory costs."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `curve` subcommand."""
    parser = subparsers.add_parser("curve", help="show the time that each amount of memory costs")
    parser.add_argument("file", metavar="TRACE", help="a trace, as `memfit trace` writes it")
    parser.add_argument("--machine", default="pcie4", metavar="M", help="a profile or a file (default: pcie4)")
    parser.add_argument("--points", default=12, type=int, metavar="N", help="the number of budgets (default: 12)")
    parser.add_argument("--effort", default=0.5, type=float, metavar="SECONDS", help="of each search (default: 0.5)")
    parser.add_argument("--svg", metavar="OUT.svg", help="draw the curve")
    parser.add_argument("--png", metavar="OUT.png", help="draw it with matplotlib (pip install 'memfit[plots]')")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan at each budget and report; raises InputError, and UsageError for --png without matplotlib."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.curve import curve_effort, trace_curve
    from memfit.errors import UsageError
    from memfit.files import find_machine, load_trace
    from memfit.files.document import check_folder, write_text
    from memfit.progress import working
    from memfit.reporting.curve import png_canvas, save_png, to_svg, to_text
    from memfit.reporting.show import show

    if args.points < 2:
        raise UsageError(f"--points is {args.points}", why="a curve has two or more", remedy="--points 12")
    for path in filter(None, (args.svg, args.png)):
        check_folder(path)
    canvas = png_canvas() if args.png else None  # before anything takes long
    trace, machine = load_trace(args.file), find_machine(args.machine)
    with working("planning", curve_effort(trace, args.points, args.effort)):
        figures = trace_curve(trace, machine, points=args.points, effort=args.effort)
    if args.svg:
        write_text(args.svg, to_svg(figures))
    if canvas is not None:
        save_png(figures, args.png, canvas)
    show(figures, to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit plan {shlex.quote(args.file)} --budget {figures.free.budget_bytes} -o PLAN")
    return 0
