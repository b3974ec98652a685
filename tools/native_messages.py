"""The messages of the native parts: what is thrown, what a failure says, and notices, out of the C++ sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tools.messages import GAP, Message, joined, trimmed

NATIVE = Path(__file__).parents[1] / "native"

# What begins a message, and the kind of it. A TierFailure is a TierError in Python; pybind11 and nanobind turn the
# standard library's exceptions into Python's.
_BEGINNINGS = {
    r"throw TierFailure\(": "TierError",
    r"throw std::invalid_argument\(": "ValueError",
    r"throw std::(?:runtime_error|logic_error)\(": "RuntimeError",
    r"throw py::value_error\(": "ValueError",
    r"throw py::type_error\(": "TypeError",
    r"\brequire\([^\"\n]*,\s*(?=\")": "ValueError",
    r"const char kAbsent\[\] = ": "AccessError",
    r"const char kLost\[\] = ": "TierError",
    r"kTier;\s+failure\.message = ": "TierError",
    r"(?<!kTier;\n  )failure\.message = ": "BudgetError",
    r"std::string message = ": "TierError",
    r"notices_?\.add\([^,]*, ": "notice",
    r"TORCH_WARN\(": "warning",
}
_TOKEN = re.compile(r'"(?P<text>(?:[^"\\]|\\.)*)"|//[^\n]*|(?P<mark>[(){}\[\];?:,])|(?P<space>[\s+]+)|(?P<code>\w+|.)')


def native_messages() -> Iterator[Message]:
    """Yield every message of `native/`."""
    for path in sorted([*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]):
        source = re.sub(r'std__string\(("(?:[^"\\]|\\.)*")\)', r"\1", path.read_text().replace("::", "__"))
        for beginning, kind in _BEGINNINGS.items():
            for found in re.finditer(beginning.replace("::", "__"), source):
                for text in _texts(source, found.end()):
                    if text != GAP:
                        yield Message(kind, trimmed(text), "", "", f"native/{path.relative_to(NATIVE)}")


def _texts(source: str, at: int) -> Iterator[str]:
    """Yield the text of the expression at `at`, or the two that it chooses between; code in it is a gap."""
    depth, parts = 0, list[str]()
    for token in _TOKEN.finditer(source, at):
        mark = token["mark"]
        if mark is not None and mark in ";)}]" and depth == 0:
            break
        if mark is not None and mark in "?:" and depth == 0:  # what came before was the condition, or the first choice
            if mark == ":":
                yield joined(parts)
            parts = []
        elif mark in ("(", "{", "["):
            depth += 1
        elif mark in (")", "}", "]"):
            depth -= 1
        elif token["text"] is not None and depth == 0:
            parts.append(token["text"].replace('\\"', '"').replace("\\n", "\n"))
        elif token["code"]:
            parts.append(GAP)
    yield joined(parts)
