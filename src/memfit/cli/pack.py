"""`memfit pack FILE`: an address for every lifetime in a file."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `pack` subcommand."""
    parser = subparsers.add_parser("pack", help="compute an address for every lifetime in a file")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a CSV of lifetimes (id,lower,upper,size), a trace, a torch memory snapshot or a SmartPool paper log",
    )
    parser.add_argument("--capacity", metavar="B", help="take the first placement that fits into B, such as 2GiB")
    parser.add_argument("--alignment", default="512", metavar="A", help="of every address, in bytes (default: 512)")
    parser.add_argument("--effort", default=3.0, type=float, metavar="SECONDS", help="the most to spend (default: 3)")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="the seed of the search (default: 0)")
    parser.add_argument("--device", type=int, metavar="N", help="the device of a snapshot (default: the busiest)")
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="let an op's output take a dying input's place, where the trace says that it comes out the same",
    )
    parser.add_argument("-o", "--output", metavar="OUT.csv", help="write the rows with an offset column")
    parser.add_argument("--svg", metavar="OUT.svg", help="draw addresses by time")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Pack and report; raises InputError for a malformed file, BudgetError if the capacity is not met."""
    from memfit.cli.next_step import print_next
    from memfit.comparing.packing import pack_file
    from memfit.files import save_lifetimes_csv
    from memfit.files.document import check_folder, write_text
    from memfit.reporting import picture
    from memfit.reporting.packing import to_text
    from memfit.reporting.show import show
    from memfit.units import parse_bytes

    for path in filter(None, (args.output, args.svg)):
        check_folder(path)
    capacity = None if args.capacity is None else parse_bytes(args.capacity)
    packed = pack_file(args.file, capacity=capacity, alignment=parse_bytes(args.alignment), effort=args.effort,
                       seed=args.seed, device=args.device, in_place=args.in_place)  # fmt: skip
    if args.output:
        save_lifetimes_csv(args.output, packed.lifetimes, packed.offsets.tolist())
    if args.svg:
        write_text(args.svg, picture.to_svg(packed.picture()))
    show(packed.report(), to_text, as_json=args.json)
    if not args.json:
        print_next(f"memfit compare {shlex.quote(args.file)}")
    return 0
