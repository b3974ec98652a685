"""`memfit simulate TRACE PLAN`: the effect of a plan on memory and time on a machine."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `simulate` subcommand."""
    parser = subparsers.add_parser("simulate", help="predict the effect of a plan on memory and time")
    parser.add_argument("file", metavar="TRACE", help="a trace, as `memfit trace` writes it")
    parser.add_argument("plan", metavar="PLAN", help="a plan, as `memfit plan` writes it")
    parser.add_argument("--machine", metavar="M", help="a profile or a file (default: the plan's)")
    parser.add_argument("-o", "--output", metavar="TIMELINE", help="write the timeline (.gz: gzipped)")
    parser.add_argument("--chrome", metavar="OUT.json", help="write the timeline for chrome://tracing or Perfetto")
    parser.add_argument("--ranks", type=int, metavar="N", help="simulate N ranks that run this plan (up to 1024)")
    parser.add_argument("--per-node", type=int, default=8, metavar="K", help="ranks that share a tier (default: 8)")
    parser.add_argument(
        "--spread", type=float, default=0.0, metavar="P", help="by how many per cent ops take longer or less long"
    )
    parser.add_argument(
        "--network", type=float, default=0.0, metavar="GB/S", help="the speed of a rank's link (default: no time)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Simulate and report; raises InputError for a malformed file or a plan of another trace."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.across_ranks import figures_of_ranks
    from memfit.comparing.plans import report_plan
    from memfit.files import find_machine, load_plan, load_trace, save_timeline
    from memfit.files.document import check_folder, write_text
    from memfit.planning.across_ranks import Ranks
    from memfit.planning.joint.judged import judged
    from memfit.reporting.chrome import to_chrome
    from memfit.reporting.plans import to_text
    from memfit.reporting.ranks import ranks_to_text
    from memfit.reporting.show import show

    for path in filter(None, (args.output, args.chrome)):
        check_folder(path)
    trace, plan = load_trace(args.file), load_plan(args.plan)
    machine = find_machine(args.machine or plan.machine)
    found = judged(trace, machine, plan)
    if args.output:
        save_timeline(found.timeline, args.output)
    if args.chrome:
        write_text(args.chrome, to_chrome(found.made.trace, found.swaps, {"iteration": found.timeline}, found.made))
    if args.ranks is not None:
        ranks = Ranks(args.ranks, args.per_node, args.spread / 100, args.network * 1e9)
        show(figures_of_ranks(found, machine, ranks), ranks_to_text, as_json=args.json)
        return 0
    show(report_plan(trace, found), to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit compare {shlex.quote(args.file)} --budgets 80,60,40%")
    return 0
