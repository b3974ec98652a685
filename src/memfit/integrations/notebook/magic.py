"""`%%memfit`: a cell inside a byte budget."""

from __future__ import annotations

import asyncio
from tokenize import TokenError
from typing import Any

from IPython import get_ipython
from IPython.core.displayhook import DisplayHook
from IPython.core.magic_arguments import MagicArgumentParser

from memfit import errors
from memfit.errors import MemfitError
from memfit.integrations.notebook.options import in_short, options_of
from memfit.integrations.notebook.told_once import InnerCell
from memfit.messages import say_error
from memfit.running.scripts.launch import no_limit_error, outcome_of
from memfit.running.session import Session

_ABOUT = """Run the cell inside a byte budget.

Tensors of earlier cells belong to the budget too. The session stays under the name of --into, with its figures: in
`_memfit.stats` and `_memfit.trace`.
"""


def _parser() -> Any:
    parser = MagicArgumentParser("%memfit", description=_ABOUT)
    add = parser.add_argument
    add("--budget", metavar="B", help="bytes (2GiB), a share of the peak (60%%), or what is free (auto)")
    add("--tier", metavar="T", help="where bytes go that do not fit, as of `memfit run`")
    add("--device", metavar="D", default="auto", help="cpu, cuda or cuda:N (default: the GPU if there is one)")
    add("--moves", default="joint", choices=("joint", "swap", "recompute"), help="what plans do (default: joint)")
    add("--grow", dest="grow", action="store_true", default=None, help="an op that does not fit gets more (a share's "
        "default)")  # fmt: skip
    add("--no-grow", dest="grow", action="store_false", help="such an op is an error (the default of bytes)")
    add("--no-plan-cache", dest="plan_cache", action="store_false", help="use and keep no plans of other runs")
    add("--into", metavar="NAME", default="_memfit", help="the name of the session (default: _memfit)")
    return parser


_PARSER = _parser()


def memfit(line: str, cell: str) -> None:
    """Run the cell inside a byte budget."""
    shell = get_ipython()
    options = _options(line)
    _refuse_await(shell, cell)
    session, inner = _session(options), InnerCell(shell)
    try:
        with session:
            shell.user_ns[options.into] = session
            inner.run(_numbered(line, cell), silent=_ends_silently(cell))
    except BaseException as error:
        if session.began is None and isinstance(error, MemfitError):
            raise in_short(error) from None
        if session.began is not None and session.stats.ops:
            print(outcome_of(session, 1, options.budget).summary())
        inner.tell(error)
        raise
    _summarise(session, options.budget)


memfit.__doc__ = _PARSER.format_help()


def _options(line: str) -> Any:
    options = options_of(_PARSER, line)
    if not options.into.isidentifier():
        remedy = "a name as of a variable: --into run"
        raise in_short(errors.UsageError(f"--into {options.into}: this is not a name", remedy=remedy))
    return options


def _session(options: Any) -> Session:
    announce = _say if options.budget is not None else None
    try:
        return Session(options.budget, options.tier, device=options.device, moves=options.moves, grow=options.grow,
                       plan_cache=options.plan_cache, announce=announce)  # fmt: skip
    except MemfitError as error:
        raise in_short(error) from None


def _say(text: str) -> None:
    print(f"memfit: {text}")  # on standard output: notebooks show the other one as an alarm


def _summarise(session: Session, budget: str | None) -> None:
    """Print the line that `memfit run` ends with, and an error if a share never became a limit."""
    outcome = outcome_of(session, 0, budget)
    print(outcome.summary())
    if outcome.no_limit:
        say_error(no_limit_error(outcome.budget, outcome.no_limit, "the cell had no limit"))


def _numbered(line: str, cell: str) -> str:
    """Return the cell with the magic's line as a comment, so that lines have their numbers; not before a magic's."""
    indent = cell[: len(cell) - len(cell.lstrip(" \t"))]
    return cell if cell.lstrip().startswith("%%") else f"{indent}# %%memfit {line}\n{cell}"


def _ends_silently(cell: str) -> bool:
    """Return whether a semicolon at the cell's end asks for no value to be shown."""
    try:
        return bool(DisplayHook.semicolon_at_end_of_expression(cell))
    except (SyntaxError, TokenError):  # its other lines may be for IPython alone
        return False


def _refuse_await(shell: Any, cell: str) -> None:
    """Refuse what IPython cannot run in a magic: a loop of events inside of another one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if _awaits(shell, cell):
        raise in_short(errors.UsageError(
            "`await` does not work at the top of a cell below %%memfit",
            why="the notebook's loop of events is running the magic, and starts no other one inside of it",
            remedy="with memfit.session(...): around these lines, without %%memfit",
        ))  # fmt: skip


def _awaits(shell: Any, cell: str) -> bool:
    try:
        return bool(shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)))
    except Exception:  # the cell will show it
        return False
