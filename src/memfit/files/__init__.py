"""Save and load what memfit records and plans, and load what other tools record."""

from memfit.files.lifetimes_csv import load_lifetimes_csv, save_lifetimes_csv
from memfit.files.paper_text import load_paper_accesses, load_paper_mallocs
from memfit.files.recognise import load_events, load_lifetimes
from memfit.files.snapshot import load_snapshot
from memfit.files.trace import load_trace, save_trace

__all__ = [
    "load_events",
    "load_lifetimes",
    "load_lifetimes_csv",
    "load_paper_accesses",
    "load_paper_mallocs",
    "load_snapshot",
    "load_trace",
    "save_lifetimes_csv",
    "save_trace",
]
