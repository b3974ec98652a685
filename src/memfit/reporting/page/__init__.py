"""The report: one HTML file with pictures of an iteration's memory, which asks for nothing from anywhere."""

from memfit.reporting.page.data import (
    Boxes,
    ChangeRow,
    Changes,
    GapRow,
    Head,
    Lane,
    OwnerRow,
    Page,
    RunFigures,
    WhatIf,
)
from memfit.reporting.page.render import to_html

__all__ = [
    "Boxes",
    "ChangeRow",
    "Changes",
    "GapRow",
    "Head",
    "Lane",
    "OwnerRow",
    "Page",
    "RunFigures",
    "WhatIf",
    "to_html",
]
