"""Writes two headers of native/engine from reports of the worker: `python -m running.stress.verified REPORT ...`.

On a device that is asynchronous only the operators of verified_ops.h are believed to leave what they read as it was.
What composites call is made again only inside those of transparent_ops.h.
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
COMPOSITES = OBSERVER.with_name("transparent_ops.h")
TEXT = """// {about}
// Written by tests/running/stress/verified.py: do not edit.
#pragma once

#include <string_view>

namespace memfit {{

// In order.
constexpr std::string_view {name}[] = {{
{rows}}};

}}  // namespace memfit
"""
VERIFIED = "Operators that were seen to write to nothing but what their schema, or the list in observer.cpp, says."
TRANSPARENT = "Composites that were seen to write nothing that the operators which they call do not write."


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


def transparent(reports: Iterable[dict[str, Any]]) -> set[str]:
    """Return torch's own composites that were tried, and never wrote anything themselves."""
    reports = list(reports)
    tried = {name for report in reports for name, calls in report["composed"].items() if calls}
    return {name for name in tried - opaque(reports) if name.startswith("aten::")}


def opaque(reports: Iterable[dict[str, Any]]) -> set[str]:
    """Return composites that wrote something that none of what they call wrote."""
    return {name for report in reports for name, calls in report["opaque"].items() if calls}


def listed(header: Path = HEADER) -> set[str]:
    """Return what a header says."""
    return set(re.findall(r'^    "(.+)",$', header.read_text(), re.M))


def write(header: Path, name: str, about: str, names: set[str]) -> None:
    """Write a header."""
    rows = "".join(f'    "{each}",\n' for each in sorted(names))
    header.write_text(TEXT.format(about=about, name=name, rows=rows))


if __name__ == "__main__":
    reports = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    write(HEADER, "kVerifiedOps", VERIFIED, verified(reports))
    write(COMPOSITES, "kTransparentOps", TRANSPARENT, transparent(reports))
