"""Writes docs/errors.md, the index of all messages, from the sources and from tools/errors.toml.

A message that the code has gets a row by itself, with its own cause and remedy. `errors.toml` groups messages and
explains what they leave open. What it names has to be there, and an error or a warning without a remedy has to be
explained in it.

Usage: python -m tools.make_errors
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.messages import EXIT_CODES, GAP, Message, messages

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
NOTES = Path(__file__).parent / "errors.toml"

HEAD = """# Messages

`tools/make_errors.py` writes this page from the sources; a test holds that every message of memfit is on it.

Search for the words of a message: `...` stands for what differs from run to run. An error says what happened, `why:`,
and what to `try:`; lower-case cells are its own words for these two. The second column has its class and the exit code
of the command line, which [the guide](guide.md#commands) explains. A notice is a line on standard error that begins
with `memfit:` and ends nothing. Python's own classes of errors come from calls that pass something impossible.

Other words after `memfit: error:`, with exit code 2, are about an option that does not exist or lacks its value:
`memfit COMMAND --help` lists the options. A script's own errors are Python's, with a traceback.

The [recipes](recipes.md) show the usual problems from beginning to end."""


class Unlisted(Exception):
    """The notes and the code do not fit: the text says what to add or to remove."""


@dataclass(frozen=True)
class Row:
    """One row of the page: messages of one kind."""

    messages: tuple[Message, ...]
    means: str
    do: str

    def markdown(self) -> str:
        """Return it as a row of a table."""
        words = "<br>".join(_code(message.what) for message in self.messages)
        kinds = "<br>".join(dict.fromkeys(_kind(message.kind) for message in self.messages))
        return "| " + " | ".join(part.replace("|", "\\|") for part in (words, kinds, self.means, self.do)) + " |"


def page(found: Sequence[Message] | None = None, notes: dict[str, Any] | None = None) -> str:
    """Return the page. Raises Unlisted where the notes do not fit the messages."""
    groups = (tomllib.loads(NOTES.read_text()) if notes is None else notes)["group"]
    rest = dict.fromkeys(messages() if found is None else found)
    noted = [[_noted(row, rest) for row in group.get("row", [])] for group in groups]
    parts = [HEAD]
    for group, rows in zip(groups, noted, strict=True):
        rows += [_own(message) for message in _of_files(group["files"], rest, groups)]
        table = ["| message | error, exit code | meaning | to do |", "| --- | --- | --- | --- |"]
        parts += [f"## {group['title']}", "\n".join([*table, *(row.markdown() for row in rows)])]
    if rest:
        lost = "\n".join(f"  {message.what} ({message.file})" for message in rest)
        raise Unlisted(f"tools/errors.toml has no group for the files of these messages:\n{lost}")
    return "\n\n".join(parts) + "\n"


def _noted(row: dict[str, Any], rest: dict[Message, None]) -> Row:
    """Return the row that the notes describe, and take its messages out of `rest`."""
    chosen = [message for message in rest if message.file.startswith(tuple(row.get("files", ())))]
    for words in row.get("messages", ()):
        named = [message for message in rest if _is_named(message.what, words)]
        if not named:
            raise Unlisted(f"tools/errors.toml explains a message that the code does not have: {words}")
        chosen += named
    for message in chosen:
        rest.pop(message)
    why, remedy = chosen[0].why, chosen[0].remedy
    return _checked(Row(tuple(chosen), row.get("means", why), row.get("do", remedy)))


def _is_named(what: str, words: str) -> bool:
    return what.startswith(words[:-1]) if words.endswith("*") else what == words


def _of_files(files: list[str], rest: dict[Message, None], groups: list[dict[str, Any]]) -> Iterator[Message]:
    """Take the messages of a group's files out of `rest`, unless another group names their file more exactly."""
    every = [name for group in groups for name in group["files"]]
    for message in list(rest):
        best = max((name for name in every if message.file.startswith(name)), key=len, default="")
        if best in files:
            rest.pop(message)
            yield message


def _own(message: Message) -> Row:
    why, remedy = (text.replace("*", "\\*") if text != GAP else "" for text in (message.why, message.remedy))
    is_news = message.kind == "notice" and not message.what.startswith("warning:")
    return _checked(Row((message,), why, remedy or ("Nothing." if is_news else "")))


def _checked(row: Row) -> Row:
    if not row.do:
        raise Unlisted(f"this message has no remedy, and tools/errors.toml says nothing of it: {row.messages[0].what}")
    return row


def _code(text: str) -> str:
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def _kind(name: str) -> str:
    return f"{name}, {EXIT_CODES[name]}" if name in EXIT_CODES else name


if __name__ == "__main__":
    PAGE.write_text(page())
