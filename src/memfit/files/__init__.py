"""Save and load what memfit records and plans, and load what other tools record."""

from memfit.files.lifetimes_csv import load_lifetimes_csv, save_lifetimes_csv
from memfit.files.machine import find_machine, load_machine, save_machine
from memfit.files.paper_text import load_paper_accesses, load_paper_mallocs
from memfit.files.plan import load_plan, save_plan
from memfit.files.recognise import load_events, load_lifetimes
from memfit.files.snapshot import load_snapshot
from memfit.files.timeline import load_timeline, save_timeline
from memfit.files.trace import load_trace, save_trace

__all__ = [
    "find_machine",
    "load_events",
    "load_lifetimes",
    "load_lifetimes_csv",
    "load_machine",
    "load_paper_accesses",
    "load_paper_mallocs",
    "load_plan",
    "load_snapshot",
    "load_timeline",
    "load_trace",
    "save_lifetimes_csv",
    "save_machine",
    "save_plan",
    "save_timeline",
    "save_trace",
]
