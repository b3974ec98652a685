"""`memfit whatif SCRIPT --vary batch=8,16,32 -- --batch {batch}`: memory and time for other arguments, foreseen."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.ir import Trace

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `whatif` subcommand."""
    parser = subparsers.add_parser(
        "whatif",
        help="foresee memory and time of a script for other batch sizes, lengths, types or optimizers",
        usage="memfit whatif SCRIPT|-m MODULE --vary NAME=A,B,C [--budget B] [...] [-- ARGS with {NAME} ...]  "
        "(or TRACE ... [--budget B] [...], or TRACE --with 8bit-adam,lora:8,... [--budget B] [...])",
        epilog="The script is run without values, which takes no memory: {NAME} in its arguments is replaced by each "
        "value; a NAME that is in none of them is set as an environment variable.",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module, as python -m takes it")
    parser.add_argument("words", nargs="*", metavar="SCRIPT|TRACE", help="a script, or recorded traces")
    parser.add_argument("--vary", action="append", default=[], metavar="NAME=A,B,C", help="values to try; may be given "
                        "several times for every combination")  # fmt: skip
    parser.add_argument("--with", dest="techniques", metavar="A,B:N,...", help="techniques of model compression, to "
                        "foresee what each takes off a trace: 8bit-adam, lora:8, bf16, ...")  # fmt: skip
    parser.add_argument("--budget", metavar="B", help='bytes, or "60%%" of each peak (default: none)')
    parser.add_argument("--machine", default="pcie4", metavar="M", help="a profile or a file (default: pcie4)")
    parser.add_argument(
        "--accelerator", default="h100", metavar="A", help="whose roofline times the ops: v100, a100, h100 or h200 "
        "(default: h100)"
    )  # fmt: skip
    parser.add_argument("--effort", default=0.5, type=float, metavar="SECONDS", help="of each search (default: 0.5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)
    vars(parser)["takes_words_anywhere"] = True


def run(args: argparse.Namespace) -> int:
    """Record or load each case and report; raises InputError where a script needs values, and UsageError."""
    if args.techniques is not None:
        return _compress(args)
    from memfit.comparing.whatif import case_of
    from memfit.files import find_machine
    from memfit.reporting.show import show
    from memfit.reporting.whatif import WhatIf, to_text
    from memfit.units import parse_budget

    machine = find_machine(args.machine)
    budget = None if args.budget is None else parse_budget(args.budget)
    subject, cases = _cases(args)
    found = [case_of(trace, values, machine, budget, effort=args.effort) for values, trace in cases]
    show(WhatIf(subject, machine.name, tuple(found)), to_text, as_json=args.json)
    return 0


def _compress(args: argparse.Namespace) -> int:
    """Report what techniques take off a trace; raises UsageError for others than one trace."""
    from memfit.comparing.compressing import describe_compression
    from memfit.comparing.compression import parse_techniques
    from memfit.errors import UsageError
    from memfit.files import find_machine, load_trace
    from memfit.reporting.compression import to_text
    from memfit.reporting.show import show
    from memfit.units import parse_budget

    chosen, machine = parse_techniques(args.techniques), find_machine(args.machine)
    if args.module is not None or len(args.words) != 1 or not _is_trace(args.words[0]) or args.vary or args.arguments:
        raise UsageError(
            "--with takes one trace",
            why="its arithmetic is that of a recorded iteration, and needs its tensors' shapes",
            remedy="memfit trace train.py -o t.json.gz, then memfit whatif t.json.gz --with lora:8",
        )
    name, budget = args.words[0], None if args.budget is None else parse_budget(args.budget)
    report = describe_compression(name, load_trace(name), chosen, machine, budget, effort=args.effort)
    show(report, to_text, as_json=args.json)
    return 0


def _cases(args: argparse.Namespace) -> tuple[str, list[tuple[dict[str, str], Trace]]]:
    """Return the subject, and the varied values of each case with its trace."""
    from memfit.errors import UsageError

    traces = [word for word in args.words if _is_trace(word)]
    if args.module is None and len(args.words) == 1 and not traces:
        return _recorded(args, args.words[0], is_module=False)
    if args.module is not None and not args.words:
        return _recorded(args, args.module, is_module=True)
    if args.module is not None or not traces or traces != args.words:
        raise UsageError(
            "memfit whatif takes one script, one module or any number of traces",
            why=f"it was given {', '.join([*(['-m ' + args.module] if args.module else []), *args.words]) or 'none'}",
            remedy="memfit whatif train.py --vary batch=8,16 -- --batch {batch}",
        )
    return _loaded(args)


def _loaded(args: argparse.Namespace) -> tuple[str, list[tuple[dict[str, str], Trace]]]:
    from memfit.errors import UsageError
    from memfit.files import load_trace

    if args.vary or args.arguments:
        raise UsageError(
            "a trace cannot be varied",
            why="it is of the arguments that it was recorded with, and has no script to run",
            remedy="pass the script, or record a trace for each value (memfit trace) and pass them all",
        )
    return "", [({"trace": word}, load_trace(word)) for word in args.words]


def _recorded(
    args: argparse.Namespace, name: str, *, is_module: bool
) -> tuple[str, list[tuple[dict[str, str], Trace]]]:
    from memfit.comparing.whatif import filled, parse_varied
    from memfit.running.scripts.script import Program, check_program
    from memfit.running.scripts.without_values import record_without_values
    from memfit.tracing.roofline import accelerator_named

    accelerator_named(args.accelerator)
    program, cases = Program(name, is_module), []
    check_program(program)
    for values in parse_varied(args.vary):
        arguments, environment = filled(args.arguments, values)
        cases.append((values, record_without_values(program, arguments, environment, args.accelerator)))
    return str(program), cases


def _is_trace(word: str) -> bool:
    """Return whether a file begins as traces do: with JSON, or with what gzip makes."""
    if not os.path.isfile(word):
        return False
    with open(word, "rb") as file:
        begin = file.read(2)
    return begin[:1] == b"{" or begin == b"\x1f\x8b"
