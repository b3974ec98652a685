"""`memfit run SCRIPT`: train a script inside a budget."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memfit.running.scripts.launch import Outcome, StatsEvery
    from memfit.running.scripts.script import Program

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


_POINTS, _EFFORT = 8, 0.1  # of the report's what-if curve; seconds of each search
_ASSUMED = "pcie4"  # of links that were not measured, since nothing left


def add_parser(subparsers: Subparsers) -> None:
    """Add the `run` subcommand."""
    from memfit.cli.program import add_program

    parser = subparsers.add_parser(
        "run",
        help="run an unmodified script inside a byte budget",
        usage="memfit run [--budget B] [--tier T] [...] [--] SCRIPT [ARGS ...]  (or -m MODULE [ARGS ...])",
        epilog="Options of memfit come before SCRIPT; everything after it is the script's.",
    )
    parser.add_argument(
        "--budget",
        metavar="B",
        help='bytes ("2GiB"), a share of the first whole iteration\'s peak ("60%%"), bytes that the ranks of a machine '
        'share ("12GiB/node"), or what is free ("auto")',
    )
    add_tier(parser)
    add_device(parser)
    parser.add_argument("--stats", metavar="FILE", help="write the session's statistics to FILE as JSON")
    parser.add_argument(
        "--stats-every",
        nargs=2,
        metavar=("N", "FILE.jsonl"),
        help="append the statistics to FILE.jsonl after every N iterations, as a line of JSON",
    )
    parser.add_argument("--watch", action="store_true", help="show in a line on standard error how the run goes")
    parser.add_argument("--plan", metavar="PLAN", help="run by this plan, as `memfit plan` writes it")
    parser.add_argument(
        "--moves",
        choices=("joint", "swap", "recompute"),
        default="joint",
        help="what plans do with bytes that are not in use: copy them to the tier and back (swap), drop them and run "
        "again the ops that made them (recompute), or the cheaper of both (joint, the default)",
    )
    parser.add_argument(
        "--timeline", metavar="OUT.json", help="write the last planned iteration, predicted and measured, for Perfetto"
    )
    parser.add_argument(
        "--report", metavar="OUT.html", help="draw the iteration, its plan and what was measured, as `memfit report`"
    )
    parser.add_argument(
        "--grow",
        action=argparse.BooleanOptionalAction,
        help="whether an op that does not fit gets more than the budget while it runs; otherwise it ends the run "
        "(default: yes for a share, no for bytes)",
    )
    add_map(parser)
    parser.add_argument(
        "--no-plan-cache",
        dest="plan_cache",
        action="store_false",
        help="neither use the plans of earlier runs nor keep this run's",
    )
    add_split(parser)
    add_partition(parser)
    parser.add_argument("--json", action="store_true", help="end with the statistics as JSON on standard error")
    add_program(parser, takes_the_rest=True)
    parser.set_defaults(run=run)


def add_tier(parser: argparse.ArgumentParser) -> None:
    """Add --tier, which every command that swaps has."""
    parser.add_argument(
        "--tier", metavar="T", help="where bytes go that do not fit: ram, ram:BYTES, disk, disk:PATH or "
        "ram:BYTES+disk:PATH; a disk may be followed by ,compress (default: disk on the CPU, ram on a GPU)"
    )  # fmt: skip


def add_map(parser: argparse.ArgumentParser) -> None:
    """Add --map, which the commands that run a script within a budget have."""
    parser.add_argument(
        "--map", choices=("auto", "never", "always"), default="auto", help="an op that needs more than the budget runs "
        "on mapped storages, whose bytes stay in the tier (auto, the default), or ends the run (never)"
    )  # fmt: skip


def add_split(parser: argparse.ArgumentParser) -> None:
    """Add --split, which commands that run a script within a budget have."""
    parser.add_argument(
        "--split", choices=("auto", "never", "try"), default="auto", help="whether an op that does not fit at once "
        "runs in slices, where these were tried to give the same bits (default: auto); try: large ones are tried ahead"
    )  # fmt: skip


def add_partition(parser: argparse.ArgumentParser) -> None:
    """Add --partition, likewise."""
    parser.add_argument(
        "--partition", choices=("torch", "recompute"), default="torch", help="what a forward pass of torch.compile's "
        "keeps for its backward pass: what torch would (the default), or what takes longer to make again than to copy"
    )  # fmt: skip


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device, which every command that runs a script has."""
    parser.add_argument(
        "--device", default="auto", metavar="D", help="the device whose memory the budget limits: cpu, cuda or cuda:N "
        "(default: the current GPU, or that of LOCAL_RANK, if there is one, otherwise the CPU)"
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Run the script and return its own exit code; raises BudgetError if the budget cannot be met.

    If all went well but a share never became a limit, the code says so.
    """
    from memfit.cli.program import program_of
    from memfit.files.document import check_folder
    from memfit.messages import say, say_error, say_for_all
    from memfit.ranks import speaks_for_all
    from memfit.running.scripts.launch import launch
    from memfit.running.scripts.script import die_as
    from memfit.units import is_auto, parse_budget

    program, arguments = program_of(args)
    _check_options(args, program, arguments)
    if args.budget is not None and not is_auto(args.budget):
        parse_budget(args.budget)
    _take_own_files(args)
    for name in ("timeline", "report"):
        if file := getattr(args, name):
            check_folder(file)
            setattr(args, name, os.path.abspath(file))  # wherever the script goes
    outcome = launch(program, arguments, args.budget, args.tier, device=args.device, stats_file=args.stats,
                     plan_file=args.plan, moves=args.moves, measures=bool(args.timeline or args.report),
                     grow=args.grow, plan_cache=args.plan_cache, watch=args.watch and speaks_for_all(), map=args.map,
                     split=args.split, partition=args.partition, log=_stats_every(args.stats_every))  # fmt: skip
    if args.report:
        _write_report(args.report, outcome)
    if args.timeline:
        _write_timelines(args.timeline, outcome)
    if args.json:
        say(outcome.to_json())
    else:
        tell = say if outcome.exit_code else say_for_all
        tell(outcome.summary())
    missing = outcome.missing_limit()
    if missing is not None and not args.json:
        say_error(missing)
    if outcome.exit_code < 0:
        die_as(outcome.exit_code)
    return outcome.exit_code or (missing.exit_code if missing is not None else 0)


def _take_own_files(args: argparse.Namespace) -> None:
    """Put this rank's files in the place of those that are named for all ranks; a plan may be for all of them."""
    from memfit.ranks import file_of_rank

    for name in ("stats", "timeline", "report"):
        if file := getattr(args, name):
            setattr(args, name, file_of_rank(file))
    if args.stats_every:
        args.stats_every[1] = file_of_rank(args.stats_every[1])
    if args.plan and os.path.exists(own := file_of_rank(args.plan)):
        args.plan = own


def _stats_every(words: list[str] | None) -> StatsEvery | None:
    from memfit.errors import UsageError
    from memfit.running.scripts.launch import StatsEvery

    if words is None:
        return None
    number, path = words
    if not number.isdecimal() or not int(number):
        why = f"'{number}' is not a number of iterations"
        raise UsageError("--stats-every takes a number and a file", why=why, remedy="--stats-every 50 stats.jsonl")
    return StatsEvery(int(number), path)


def _check_options(args: argparse.Namespace, program: Program, arguments: list[str]) -> None:
    """Find options of memfit among the script's: otherwise nobody would see that memfit ignores them.

    Raises UsageError for --budget, without which the run has no limit; "--" before the script says it is the script's.
    """
    from memfit.errors import UsageError
    from memfit.messages import say_for_all

    def misplaced(name: str) -> bool:
        return any(word == name or word.startswith(f"{name}=") for word in arguments)

    if "--" in args.words[: len(args.words) - len(arguments)]:
        return
    if misplaced("--budget") and args.budget is None and args.plan is None:
        raise UsageError(
            f"--budget comes after the script, so it belongs to the script and memfit has no budget ({program})",
            why="options of memfit come before the script; without one the run would have no limit",
            remedy=f"memfit run --budget 60% {shlex.join(program.words())} ..., or, if it is the script's own: "
            f"memfit run -- {shlex.join([*program.words(), *arguments])}",
        )
    if misplaced("--tier") and args.tier is None:
        say_for_all("memfit: warning: --tier comes after the script, so it belongs to the script; memfit uses its "
                    "default tier")  # fmt: skip


def _write_timelines(path: str, outcome: Outcome) -> None:
    from memfit.errors import UsageError
    from memfit.files.document import write_text
    from memfit.reporting.chrome import to_chrome

    ran = outcome.ran
    if ran is None:
        why = "no iteration was run by a plan that swaps"
        remedy = "lower the budget, or let it run for ten steps or more of one kind"
        raise UsageError(f"there is no timeline to write to {path}", why=why, remedy=remedy)
    timelines = {"predicted": ran.predicted} | ({"measured": ran.measured} if ran.measured else {})
    write_text(path, to_chrome(ran.made.trace, ran.plan, timelines, ran.made))


def _write_report(path: str, outcome: Outcome) -> None:
    """Draw what is known of the run: it has ended, and a report that cannot be drawn does not change that."""
    from memfit.comparing.page import Asked, page_effort, page_of, page_of_run, run_figures
    from memfit.errors import MemfitError, UsageError
    from memfit.files import find_machine
    from memfit.files.document import Fields, write_text
    from memfit.messages import say, say_error
    from memfit.progress import working
    from memfit.reporting.page import to_html

    figures, ran = run_figures(Fields(Path(path), "", outcome.as_dict())), outcome.ran
    trace, asked = ran.trace if ran else outcome.recorded, Asked(points=_POINTS, effort=_EFFORT, run=figures)
    try:
        if trace is None:
            why = "no whole iteration was recorded, from one optimizer step or forward pass to the next"
            raise UsageError(f"there is nothing to draw in {path}", why=why, remedy="let it run more steps")
        with working("drawing the report", page_effort(trace, None, asked)):
            page = page_of(trace, find_machine(_ASSUMED), file="trace.json", asked=asked) if ran is None else (
                page_of_run(trace, ran.machine, budget_bytes=outcome.stats.budget_bytes, plan=ran.plan, made=ran.made,
                            predicted=ran.predicted, measured=ran.measured, asked=asked))  # fmt: skip
        write_text(path, to_html(page))
        say(f"memfit: the report is in {path}")
    except MemfitError as error:
        say_error(error)
