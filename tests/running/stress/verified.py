"""Writes native/engine/verified_ops.h from reports of the worker: `python -m running.stress.verified REPORT ...`.

On a device that is asynchronous only these operators are believed to leave what they read as it was.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

OBSERVER = Path(__file__).parents[3] / "native" / "engine" / "observer.cpp"
HEADER = OBSERVER.with_name("verified_ops.h")
TEXT = """// Operators that were seen to write to nothing but what their schema, or the list in observer.cpp, says.
// Written by tests/running/stress/verified.py: do not edit.
#pragma once

#include <string_view>

namespace memfit {

// In order.
constexpr std::string_view kVerifiedOps[] = {
%s};

}  // namespace memfit
"""


def verified(reports: Iterable[dict[str, Any]]) -> set[str]:
    """Return torch's own operators that were tried, and never wrote to anything unmarked."""
    reports = list(reports)
    tried = {name for report in reports for name, calls in report["testimonies"].items() if calls}
    return {name for name in tried - liars(reports) if name.startswith(("aten::", "prims::"))}


@functools.cache
def unmarked_writes() -> dict[str, set[str]]:
    """Return the arguments that operators (without overloads) write to unmarked, as the engine has them."""
    text = OBSERVER.read_text()
    lists = dict(re.findall(r"const Names (k\w+) = (\{.*?\});", text))
    rows = re.findall(r'\{"(aten::\w+)", (k\w+|\{.*?\})\},', text)
    return {name: set(re.findall(r'"(\w+)"', lists.get(written, written))) for name, written in rows}


def liars(reports: Iterable[dict[str, Any]]) -> set[str]:
    """Return operators that wrote to something that nobody says they write to."""
    return {name for report in reports for name, calls in report["liars"].items() if calls}


def listed() -> set[str]:
    """Return what the header says."""
    return set(re.findall(r'^    "(.+)",$', HEADER.read_text(), re.M))


if __name__ == "__main__":
    names = verified(json.loads(Path(name).read_text()) for name in sys.argv[1:])
    HEADER.write_text(TEXT % "".join(f'    "{name}",\n' for name in sorted(names)))
