"""memfit trains a PyTorch model inside a hard byte budget, without changing the model, script or result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memfit.errors import AccessError, BudgetError, MemfitError, TierError

if TYPE_CHECKING:
    from memfit.files import load_trace, save_trace
    from memfit.ir import Trace
    from memfit.running.scripts.record import record, record_meta
    from memfit.running.session import Session, Stats, session

__version__ = "0.1.0"

__all__ = [
    "AccessError",
    "BudgetError",
    "MemfitError",
    "Session",
    "Stats",
    "TierError",
    "Trace",
    "load_trace",
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
    "session": "memfit.running.session",
    "record": "memfit.running.scripts.record",
    "record_meta": "memfit.running.scripts.record",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'memfit' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
