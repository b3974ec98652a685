"""`memfit verify SCRIPT --budget B`: the proof that a budget changes nothing."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.reporting.verdict import RanksReport, VerdictReport
    from memfit.running.scripts.script import Program
    from memfit.running.scripts.verify import Verdict

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the `verify` subcommand."""
    from memfit.cli.program import add_program
    from memfit.cli.run import add_device, add_map, add_partition, add_split, add_tier

    parser = subparsers.add_parser(
        "verify",
        help="run a script plainly and under a budget and compare every bit",
        usage="memfit verify SCRIPT|-m MODULE --budget B [--tier T] [--device D] [--map M] [--split S] "
        "[--partition P] [--steps N] [--nproc-per-node N] [--json] [-- ARGS ...]",
    )
    add_program(parser)
    parser.add_argument(
        "--budget", required=True, metavar="B", help='bytes ("2GiB"), a share of the peak ("60%%"), or "auto"'
    )
    add_tier(parser)
    add_device(parser)
    add_map(parser)
    add_split(parser)
    add_partition(parser)
    parser.add_argument(
        "--deterministic", action="store_true", help="with torch's deterministic algorithms, in both runs"
    )
    parser.add_argument(
        "--steps", type=int, default=0, metavar="N", help="stop after N optimizer steps or forward passes"
    )
    parser.add_argument(
        "--nproc-per-node", type=int, metavar="N", help="start N ranks on this machine with torchrun, and compare each"
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the verdict; returns 0 only if every hash is equal, otherwise 4."""
    from memfit.cli.next_step import print_next
    from memfit.cli.program import program_of
    from memfit.errors import UsageError, VerificationError
    from memfit.reporting.show import show
    from memfit.reporting.verdict import ranks_to_text, to_text
    from memfit.running.engine.devices import parse_device
    from memfit.running.engine.tiers import tier_for
    from memfit.running.scripts.verify import verify
    from memfit.running.scripts.verify_ranks import verify_ranks
    from memfit.units import is_auto, parse_budget

    if not is_auto(args.budget):
        parse_budget(args.budget)
    if args.steps < 0:
        raise UsageError(f"--steps {args.steps} is negative", remedy="--steps 4")
    processes = args.nproc_per_node
    if processes is not None and processes < 1:
        raise UsageError(f"--nproc-per-node {processes} is less than one", remedy="--nproc-per-node 2")
    device = parse_device(args.device)
    tier = tier_for(args.tier, device)
    program, arguments = program_of(args)
    if processes is None:
        verdicts = [verify(program, arguments, args.budget, tier, args.steps, str(device), args.deterministic,
                           map=args.map, split=args.split, partition=args.partition)]  # fmt: skip
        show(_report(verdicts[0]), to_text, as_json=args.json, indent=None)
    else:
        verdicts = verify_ranks(program, arguments, args.budget, tier, processes, args.steps, args.device,
                                args.deterministic, map=args.map, split=args.split,
                                partition=args.partition)  # fmt: skip
        show(_ranks_report(verdicts), ranks_to_text, as_json=args.json, indent=None)
    unequal = [(rank, verdict.difference) for rank, verdict in enumerate(verdicts) if verdict.difference is not None]
    if args.json:
        return VerificationError.exit_code if unequal else 0
    if unequal:
        raise VerificationError(
            "the two runs are not the same",
            why="; ".join(str(found) if processes is None else f"rank {rank}, {found}" for rank, found in unequal),
            remedy="seed the script, or --deterministic; a script that repeats itself plainly and differs here has met "
            "a bug of memfit: file an issue with this message",
        )
    print_next(_same_run(args, program, arguments))
    return 0


def _same_run(args: argparse.Namespace, program: Program, arguments: list[str]) -> str:
    """Return the command that runs the verified script."""
    options = ["--budget", args.budget]
    options += ["--tier", args.tier] if args.tier else []
    options += [word for name in ("device", "map", "split") if (value := getattr(args, name)) != "auto"
                for word in (f"--{name}", value)]  # fmt: skip
    options += ["--partition", args.partition] if args.partition != "torch" else []
    start = ["memfit"]
    if args.nproc_per_node is not None:
        start = ["torchrun", "--nproc-per-node", str(args.nproc_per_node), "-m", "memfit"]
    return shlex.join([*start, "run", *options, *program.words(), *arguments])


def _ranks_report(verdicts: list[Verdict]) -> RanksReport:
    from memfit.reporting.verdict import RanksReport

    return RanksReport(all(verdict.difference is None for verdict in verdicts), tuple(map(_report, verdicts)))


def _report(verdict: Verdict) -> VerdictReport:
    from memfit.reporting.verdict import DifferenceInfo, RunInfo, VerdictReport

    found, runs = verdict.difference, (verdict.plain, verdict.limited)
    plain, limited = (RunInfo(run.seconds, run.peak_rss_bytes, run.stats, run.no_limit) for run in runs)
    return VerdictReport(
        equal=found is None,
        steps=verdict.steps,
        compared=verdict.compared,
        skipped=verdict.skipped,
        difference=DifferenceInfo(found.step, found.what, found.op) if found else None,
        plain=plain,
        limited=limited,
    )
