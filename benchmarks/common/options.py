"""A benchmark's options are the parameters of its `run`, so that they are written once.

Those before `*` are positional; those after it are options, and a bool is a switch. `Annotated[type, {...}]` passes
more to `add_argument`: choices, or a help text.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

from benchmarks.common.result import Result

Run = Callable[..., Iterable[Result]]


def parser_of(run: Run, prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the parameters of `run`, but for `out`, which every benchmark has."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    for parameter in inspect.signature(run, eval_str=True).parameters.values():
        if parameter.name != "out":
            flags, settings = _argument(parameter)
            parser.add_argument(flags, **settings)
    return parser


def called(run: Run, args: argparse.Namespace) -> Iterable[Result]:
    """Call `run` with what was parsed."""
    return run(**{name: getattr(args, name) for name in inspect.signature(run).parameters})


def _argument(parameter: inspect.Parameter) -> tuple[str, dict[str, Any]]:
    hint, more = parameter.annotation, {}
    if get_origin(hint) is Annotated:
        hint, more = get_args(hint)
    if get_origin(hint) is UnionType:
        hint = next(each for each in get_args(hint) if each is not NoneType)
    many, required = get_origin(hint) is Sequence, parameter.default is parameter.empty
    settings: dict[str, Any] = {"type": get_args(hint)[0] if many else hint}
    if not required:
        settings["default"] = parameter.default
    if parameter.kind is not parameter.KEYWORD_ONLY:
        nargs = {"nargs": "*" if many else "?"} if many or not required else {}
        return parameter.name, settings | nargs | more
    if hint is bool:
        settings = {"action": "store_true"}
    elif many:
        settings["nargs"] = "*"
    return f"--{parameter.name.replace('_', '-')}", settings | more
