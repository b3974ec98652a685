"""Messages are collected from the sources as a user sees them, with gaps for what only a run knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import messages, native_messages
from tools.make_errors import PAGE

SNIPPETS = {
    'raise InputError(f"{path} is not text", remedy="pass a CSV file")': [
        ("InputError", "... is not text", "", "pass a CSV file")
    ],
    'raise TierError("full" if a else "slow", why=str(error))': [
        ("TierError", "full", "...", ""),
        ("TierError", "slow", "...", ""),
    ],
    'WHY = "it is late"\ndef f():\n    raise UsageError("no " + "more", why=WHY)': [
        ("UsageError", "no more", "it is late", "")
    ],
    'def f():\n    what, why = "a file", "b"\n    raise UsageError(f"no {what}", why=why)': [
        ("UsageError", "no a file", "b", "")
    ],
    'def fail(self, reason):\n    raise InputError(f"it {reason}")\nx.fail("is long")\nx.fail(reason="is old")': [
        ("InputError", "it is long", "", ""),
        ("InputError", "it is old", "", ""),
    ],
    'def _more():\n    return f"{n} left"\nsay(f"memfit: note: {_more()}")': [("notice", "note: ... left", "", "")],
    'self.announce(f"the limit: {a}, {b} or {c}{d}")': [("notice", "the limit: ..., ... or ...", "", "")],
    'from IPython.core.error import UsageError\nraise UsageError("no\\n  why: it is late\\n  try: wait")': [
        ("IPython.core.error.UsageError", "no", "it is late", "wait")
    ],
    "raise BudgetError(str(error))": [],  # a finished message, handed on
    'raise ValueError("not memfit\'s")\nprint("memfit: no")': [],
}


@pytest.mark.parametrize(("source", "expected"), SNIPPETS.items(), ids=range(len(SNIPPETS)))
def test_messages_of_python(source, expected, tmp_path, monkeypatch):
    (tmp_path / "file.py").write_text(source)
    monkeypatch.setattr(messages, "SOURCE", tmp_path)
    monkeypatch.setattr(native_messages, "native_messages", lambda: [])
    found = [(message.kind, message.what, message.why, message.remedy) for message in messages.messages()]
    assert found == expected


NATIVE = {
    'throw TierFailure("the tier " + name() + " is full; see " + where(1, ")"));': [
        ("TierError", "the tier ... is full; see ...")
    ],
    'if (!ok) throw std::invalid_argument("no \\"such\\" thing");': [("ValueError", 'no "such" thing')],
    'std::string message = std::string("in \'") + folder_ + "\' failed";': [("TierError", "in '...' failed")],
    'failure.kind = Failure::Kind::kTier;\n  failure.message = "memfit: no bytes: " + why;': [
        ("TierError", "no bytes: ...")
    ],
    'failure.message = budget != 0 ? "memfit: the budget of " + f(budget)\n  : std::string("memfit: none left");': [
        ("BudgetError", "none left"),
        ("BudgetError", "the budget of ..."),
    ],
    'notices_.add("growth " + op, "grown by " +\n  f(bytes) + " for " // so far\n "one op");': [
        ("notice", "grown by ... for one op")
    ],
    'TORCH_WARN("memfit: only ", size, " bytes");': [("warning", "only ... bytes")],
    'log("nothing");  throw Forgotten();': [],
}


@pytest.mark.parametrize(("source", "expected"), NATIVE.items(), ids=range(len(NATIVE)))
def test_messages_of_cpp(source, expected, tmp_path, monkeypatch):
    (tmp_path / "file.cpp").write_text(source)
    monkeypatch.setattr(native_messages, "NATIVE", tmp_path)
    assert sorted((message.kind, message.what) for message in native_messages.native_messages()) == expected


def literals(folder: Path, suffix: str, beginning: str) -> list[str]:
    """The words that follow `beginning` up to the first gap, found without the collector."""
    texts = (path.read_text() for path in folder.rglob(f"*{suffix}"))
    return [words for text in texts for words in re.findall(rf'{beginning}\(\s*f?"([^"{{\\]{{6,}})', text)]


def test_no_message_is_missed_that_a_search_for_its_words_finds():
    page = PAGE.read_text()
    python = literals(messages.SOURCE, ".py", rf"(?:{'|'.join(messages.EXIT_CODES)}|say|say_for_all|announce)")
    native = literals(native_messages.NATIVE, ".cpp", r"(?:TierFailure|std::\w+_(?:argument|error))")
    assert len(python) > 80 and len(native) > 30
    assert [words for words in [*python, *native] if words.removeprefix("memfit: ").strip() not in page] == []
