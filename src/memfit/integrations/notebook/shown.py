"""Traces, plans, statistics and sessions in IPython: as HTML in a notebook, as lines in a terminal."""

from __future__ import annotations

from typing import Any

# Named, and not imported: a notebook that has no such value need not wait for torch.
_SHOWN = (
    ("memfit.ir", "Trace"),
    ("memfit.ir", "Plan"),
    ("memfit.running.planned.engine_plan", "EnginePlan"),
    ("memfit.running.session.api", "Session"),
    ("memfit.running.session.stats", "Stats"),
)


def show_in(shell: Any) -> None:
    """Have a running IPython show what memfit returns."""

    def html(value: Any) -> str:
        from memfit.integrations.notebook.figures import glance_at
        from memfit.reporting.glance import to_html

        return to_html(glance_at(value, shell))

    def lines(value: Any, printer: Any, cycle: bool) -> None:
        from memfit.integrations.notebook.figures import glance_at
        from memfit.reporting.glance import to_text

        within = len(printer.stack) > 1  # a list, say
        printer.text(repr(value) if within else to_text(glance_at(value, shell)))

    formatters = shell.display_formatter.formatters
    for module, name in _SHOWN:
        formatters["text/html"].for_type_by_name(module, name, html)
        formatters["text/plain"].for_type_by_name(module, name, lines)
