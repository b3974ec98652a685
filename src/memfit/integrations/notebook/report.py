"""`%memfit_report`: the report of an iteration, in the notebook."""

from __future__ import annotations

import html
from typing import Any

from IPython import get_ipython
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import display

from memfit.comparing.page import Asked, page_of
from memfit.errors import MemfitError, UsageError
from memfit.files import find_machine
from memfit.integrations.notebook.cells import trace_with_cells
from memfit.integrations.notebook.options import in_short, options_of
from memfit.ir import Trace
from memfit.reporting.page import to_html
from memfit.running.session import Session
from memfit.simulate import load_bytes
from memfit.units import parse_budget

_ABOUT = """Show the report of an iteration, as `memfit report` draws it."""


def _parser() -> Any:
    parser = MagicArgumentParser("memfit_report", description=_ABOUT)
    add = parser.add_argument
    add("value", nargs="?", default="_memfit", help="a trace, or a session that has recorded one (default: _memfit)")
    add("--budget", metavar="B", help="plan for it: bytes, or a share of the peak (60%%)")
    add("--machine", metavar="M", default="pcie4", help="a profile or a file (default: pcie4)")
    add("--points", type=int, default=0, metavar="N", help="budgets of the what-if curve (default: none)")
    add("--height", type=int, default=700, metavar="PIXELS", help="of the frame (default: 700)")
    return parser


_PARSER = _parser()


def memfit_report(line: str) -> None:
    """Show the report of an iteration."""
    options = options_of(_PARSER, line)
    shell = get_ipython()
    try:
        page = _page(trace_with_cells(_trace(shell.ev(options.value), options.value), shell), options)
    except MemfitError as error:
        raise in_short(error) from None
    frame = f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}" height="{options.height}"'
    shown = {"text/html": f'{frame} style="width: 100%; border: 0"></iframe>', "text/plain": "a report, as HTML"}
    display(shown, raw=True)


memfit_report.__doc__ = _PARSER.format_help()


def _trace(value: object, name: str) -> Trace:
    if isinstance(value, Session):
        return value.trace
    if isinstance(value, Trace):
        return value
    remedy = "%memfit_report _memfit.trace"
    raise UsageError(f"{name} is neither a trace nor a session", why=f"it is a {type(value).__name__}", remedy=remedy)


def _page(trace: Trace, options: Any) -> str:
    budget = None
    if options.budget is not None:
        budget = parse_budget(options.budget).resolve(int(load_bytes(trace).max()))
    machine = find_machine(options.machine)
    return to_html(page_of(trace, machine, file="TRACE", budget_bytes=budget, asked=Asked(points=options.points)))
