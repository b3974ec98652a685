"""What the native sources may use."""

from __future__ import annotations

import re
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"
STREAMS = re.compile(r"#include <(fstream|iomanip|iostream|istream|locale|ostream|regex|sstream|streambuf)>")


def test_none_uses_streams():
    """Their locales are the process's: one library with its own copy of the C++ runtime crashes at the first use."""
    files = [path for path in NATIVE.rglob("*") if path.suffix in {".h", ".cpp", ".cc"}]
    assert len(files) > 100
    assert [path.name for path in files if STREAMS.search(path.read_text())] == []
