"""Save and load what memfit records and plans: versioned JSON, written whole or not at all."""

from memfit.files.trace import load_trace, save_trace

__all__ = ["load_trace", "save_trace"]
