"""The `memfit` command. Nothing heavy is imported before a subcommand runs, so that --help is instant."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from memfit._version import __version__
from memfit.errors import MemfitError, UsageError
from memfit.messages import flush_output, say_error

# Modules of memfit.cli in the order --help lists them. Each has `add_parser(subparsers)`, which sets `run` as
# the parser's default, and `run(args) -> exit code`, which imports all it needs itself.
COMMANDS = (
    "run",
    "trace",
    "info",
    "pack",
    "plan",
    "simulate",
    "explain",
    "report",
    "whatif",
    "compare",
    "curve",
    "verify",
    "doctor",
)

# The words that follow an option of `run`, where it is not one.
_RUN_TAKES = {"--json": 0, "--watch": 0, "--grow": 0, "--no-grow": 0, "--no-plan-cache": 0, "--stats-every": 2}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own) and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        own, arguments = _split(words)
        args = _parser().parse_args(own, argparse.Namespace(arguments=arguments, words=words))
        return int(args.run(args)) if args.command == "run" else _ours(args)
    except MemfitError as error:
        say_error(error)
        return error.exit_code
    except KeyboardInterrupt:  # of memfit's own work: a script handles its own interrupts
        from memfit.running.scripts.script import die_as

        die_as(-signal.SIGINT)
        raise


def _ours(args: argparse.Namespace) -> int:
    """Run a command whose output is its own, not a script's: a reader that stops early (`| head`) is not an error."""
    with contextlib.suppress(AttributeError, ValueError):  # it is closed, or no stream of Python's
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a file's name may be any bytes
    try:
        code = int(args.run(args))
        flush_output()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        return 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Take off the script's own arguments, which follow "--" (after `run SCRIPT` and `run -m M` they need none)."""
    if words[:1] == ["run"]:
        at = _module_at(words)
        return [*words[:at], "--", *words[at:]] if at else words, []
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _module_at(words: list[str]) -> int:
    """Return the position of the -m of `run -m MODULE`; 0 if a script or a "--" comes first."""
    at = 1
    while at < len(words) and words[at].startswith("--") and words[at] != "--":
        at += 1 if "=" in words[at] else 1 + _RUN_TAKES.get(words[at], 1)
    return at if words[at : at + 1] == ["-m"] else 0


class _Parser(argparse.ArgumentParser):
    """Reports a usage error the way every other error is reported."""

    takes_words_anywhere = False
    """Whether optional words may stand behind options, too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, as argparse does, or in two passes if words may stand anywhere: those call this again."""
        if not self.takes_words_anywhere:
            return super().parse_known_args(args, namespace)
        self.takes_words_anywhere = False
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.takes_words_anywhere = True

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, remedy=f"{self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="memfit", description="Train a PyTorch script inside a hard byte budget.")
    parser.add_argument("--version", action="version", version=f"memfit {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    for name in COMMANDS:
        import_module(f"memfit.cli.{name}").add_parser(subparsers)
    return parser
