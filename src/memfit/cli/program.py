"""The program to run, as every command takes it: SCRIPT, or -m MODULE."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.running.scripts.script import Program


def add_program(parser: argparse.ArgumentParser, *, takes_the_rest: bool = False) -> None:
    """Add SCRIPT and -m MODULE; with `takes_the_rest` everything after them is the script's, options included."""
    about = "a module, as python -m takes it"
    parser.add_argument("-m", dest="module", metavar="MODULE", action=_Module, help=about)
    parser.add_argument("script", metavar="SCRIPT", help="a script, as it is: a file, a folder or a zip file")
    if takes_the_rest:
        parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS", help="the script's own arguments")


def program_of(args: argparse.Namespace) -> tuple[Program, list[str]]:
    """Return the program, and its own arguments."""
    from memfit.errors import UsageError
    from memfit.running.scripts.script import Program

    module, arguments = args.module, args.arguments
    if args.script == "-m":  # behind "--", where all is taken as it is
        module, arguments = arguments[0] if arguments else "", arguments[1:]
    if module == "":
        raise UsageError("-m needs the name of a module", remedy="memfit run --budget 60% -m package.module")
    return Program(module or args.script, is_module=module is not None), arguments


def command_of(script: str) -> str:
    """Return a trace's script as one types it."""
    name, space, module = script.partition(" ")
    return f"-m {shlex.quote(module)}" if space and name == "-m" else shlex.quote(script or "SCRIPT")


class _Module(argparse.Action):
    """Takes a module's name, beside which no script is required."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace,
        values: str | Sequence[Any] | None, option_string: str | None = None,
    ) -> None:  # fmt: skip
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            if not action.option_strings:
                action.required = False
