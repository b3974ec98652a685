"""IPython and Jupyter: `%load_ext memfit` gives them `%%memfit` and `%memfit_report`."""

from __future__ import annotations

from typing import Any

from memfit.integrations.notebook.shown import show_in

__all__ = ["load_ipython_extension", "show_in", "unload_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Add the magics to a running IPython; `%load_ext memfit` calls this."""
    from memfit.integrations.notebook.magic import memfit
    from memfit.integrations.notebook.report import memfit_report

    show_in(shell)
    shell.register_magic_function(memfit, "cell", "memfit")
    shell.register_magic_function(memfit_report, "line", "memfit_report")


def unload_ipython_extension(shell: Any) -> None:
    """Take the magics away again; `%unload_ext memfit` calls this."""
    shell.magics_manager.magics["cell"].pop("memfit", None)
    shell.magics_manager.magics["line"].pop("memfit_report", None)
