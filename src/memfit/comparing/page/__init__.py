"""The data of a report: an iteration's memory, who owns its peak, and what a plan does about it."""

from memfit.comparing.page.figures import run_figures
from memfit.comparing.page.pages import Asked, page_effort, page_of, page_of_run

__all__ = ["Asked", "page_effort", "page_of", "page_of_run", "run_figures"]
