"""memfit trains a PyTorch model inside a hard byte budget, without changing the model, script or result.

The public names are those of this package and of `memfit.errors`, `memfit.ir`, `memfit.files`, `memfit.machine`,
`memfit.planning.packing`, `memfit.validate` and `memfit.validate_plan`, and `Accelerator` of `memfit.tracing.roofline`;
docs/api.md lists them. Everything else is internal and may change without notice.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from memfit._version import __version__
from memfit.errors import AccessError, BudgetError, MemfitError, TierError

if TYPE_CHECKING:
    from memfit.files import load_trace, save_trace
    from memfit.ir import Trace
    from memfit.running.scripts.record import record, record_meta
    from memfit.running.session import Session, Stats, active_session, map, session

__all__ = [
    "AccessError",
    "BudgetError",
    "MemfitError",
    "Session",
    "Stats",
    "TierError",
    "Trace",
    "__version__",
    "active_session",
    "load_trace",
    "map",
    "record",
    "record_meta",
    "save_trace",
    "session",
]

# Imported on first use: planning and reporting work without torch, and `memfit --help` without numpy.
_LAZY = {
    "Trace": "memfit.ir",
    "load_trace": "memfit.files",
    "save_trace": "memfit.files",
    "Session": "memfit.running.session",
    "Stats": "memfit.running.session",
    "active_session": "memfit.running.session",
    "map": "memfit.running.session",
    "session": "memfit.running.session",
    "record": "memfit.running.scripts.record",
    "record_meta": "memfit.running.scripts.record",
    # IPython calls these.
    "load_ipython_extension": "memfit.integrations.notebook",
    "unload_ipython_extension": "memfit.integrations.notebook",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'memfit' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _show_in_ipython() -> None:
    """Let IPython, where it runs, show traces, plans and statistics in its own way."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    if shell is not None:
        from memfit.integrations.notebook import show_in

        show_in(shell)


_show_in_ipython()
