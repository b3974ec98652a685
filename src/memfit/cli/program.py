"""What to run, as every command that runs a script takes it: SCRIPT, or -m MODULE."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memfit.running.script import Program


def add_program(parser: argparse.ArgumentParser, *, takes_the_rest: bool = False) -> None:
    """Add SCRIPT and -m MODULE; `takes_the_rest`: what follows either is the script's, options included."""
    rest = argparse.REMAINDER if takes_the_rest else None
    about = "a module, as python -m takes it"
    parser.add_argument("-m", dest="module", metavar="MODULE", nargs=rest, action=_Module, help=about)
    parser.add_argument("script", metavar="SCRIPT", help="a training script, as it is: a file, a folder or a zip file")
    if takes_the_rest:
        parser.add_argument("arguments", nargs=rest, metavar="ARGS", help="the script's own arguments")


def program_of(args: argparse.Namespace) -> tuple[Program, list[str]]:
    """Return what is to be run, and its own arguments."""
    from memfit.running.script import Program

    module: str | list[str] | None = args.module
    if args.script == "-m":  # after "--", which tells that all the rest is the program's
        module = args.arguments
    if not module:
        return Program(args.script), args.arguments
    if isinstance(module, str):
        return Program(module, is_module=True), args.arguments
    return Program(module[0], is_module=True), module[1:]


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
        if not values:
            parser.error("-m needs the name of a module")
        setattr(namespace, self.dest, values)
        for action in parser._actions:
            if not action.option_strings:
                action.required = False
