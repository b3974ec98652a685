"""A recipe of docs/recipes: its files and commands, run in order in one shell, and its output compared with the page's.

Figures and their units may differ from the page's, and so may line breaks. Words may not. `...` stands for anything.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"[-+]?(?<![\w#.])x?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: ?(?:[KMGT]i?B|B|ns|us|ms|s)(?:/s)?\b)?")
_MARK = "@@recipe@@"


@dataclass(frozen=True)
class Command:
    """A command of a page and the output that the page shows."""

    line: int
    text: str
    shown: str


@dataclass(frozen=True)
class Recipe:
    """A page's files, by name, and its commands."""

    files: dict[str, str]
    commands: list[Command]


@dataclass(frozen=True)
class Done:
    """What a command printed, on both streams, and its exit code."""

    output: str
    code: int


def read(page: str) -> Recipe:
    """Take the files (a fence with a language and a name) and the commands (a fence `console`) out of `page`."""
    files, commands = {}, []
    for block in _BLOCK.finditer(page):
        language, name, body = block.groups()
        if name:
            files[name] = body
        elif language == "console":
            commands += _commands(body, page[: block.start()].count("\n") + 2)
    return Recipe(files, commands)


def _commands(body: str, line: int) -> Iterator[Command]:
    for part in re.split(r"^(?=\$ )", body, flags=re.MULTILINE):
        first, *rest = part.splitlines() or [""]
        if first.startswith("$ "):
            more = next((at for at, text in enumerate(rest) if not text.startswith("> ")), len(rest))
            text = "\n".join([first[2:], *(text[2:] for text in rest[:more])])
            yield Command(line, text, "\n".join(rest[more:]))
        else:
            assert not part, f"line {line}: a console block begins with `$ `"
        line += part.count("\n")


def run(recipe: Recipe, folder: Path, environment: dict[str, str], seconds: float = 540) -> list[Done]:
    """Write the recipe's files to `folder` and run its commands there, one shell for all of them."""
    for name, text in recipe.files.items():
        (folder / name).write_text(text)
    script = "\n".join(map(_told, recipe.commands))
    (folder / ".recipe.sh").write_text(script)
    printed = _printed(["bash", ".recipe.sh"], folder, environment, seconds)
    parts = re.split(rf"{_MARK} (\d+)\n", printed)
    assert len(parts) == 2 * len(recipe.commands) + 1, printed
    texts = [part.replace(f"{folder}/.tmp", "/tmp").replace(f"{folder}/", "") for part in parts[:-1:2]]
    return [Done(text, int(code)) for text, code in zip(texts, parts[1::2], strict=True)]


def _printed(command: list[str], folder: Path, environment: dict[str, str], seconds: float) -> str:
    """Return what a command prints on both streams; all that it has started ends with it."""
    printed = folder / ".recipe.out"
    with open(printed, "w") as file:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                   stdout=file, stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            process.wait(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return printed.read_text()


def _told(command: Command) -> str:
    """Return the command and a line that ends its output with its exit code, which `echo $?` still sees afterwards."""
    return f'{command.text}\ncode=$?; echo "{_MARK} $code"; (exit $code)'


def differences(recipe: Recipe, done: list[Done]) -> Iterator[str]:
    """Yield a text for each command that failed, or that printed other words than the page shows.

    A command may fail whose exit code the page shows next, by `echo $?`.
    """
    for at, (command, result) in enumerate(zip(recipe.commands, done, strict=True)):
        told = at + 1 < len(recipe.commands) and recipe.commands[at + 1].text == "echo $?"
        about = f"line {command.line}: $ {command.text}\n{result.output}"
        if result.code != 0 and not told:
            yield f"{about}(exit code {result.code})"
        elif command.text == "echo $?" and result.output != command.shown + "\n":
            yield f"{about}(the page shows {command.shown})"
        elif not is_alike(command.shown, result.output):
            yield f"{about}does not match\n{command.shown}"


def is_alike(shown: str, printed: str) -> bool:
    """Whether the words of `printed` are those that a page shows."""
    parts = [re.escape(_words(part)) for part in re.split(r"\.\.\.", shown)]
    return re.fullmatch("(?s:.*)".join(parts), _words(printed)) is not None


def _words(text: str) -> str:
    """Return `text` with a `#` for each figure and its unit, without what only draws a table or ends a line."""
    return "".join(_NUMBER.sub("#", text).split())


def environment(folder: Path, engine: Path) -> dict[str, str]:
    """Return the environment of a recipe: this Python's `memfit`, the built engine, and a home in `folder`."""
    home, temporary = folder / ".home", folder / ".tmp"
    cache = home / ".cache" / "memfit"
    for made in (cache, temporary):
        made.mkdir(parents=True)
    (cache / engine.name).symlink_to(engine)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    others = ("MEMFIT_", "SLURM_", "XDG_CACHE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return kept | {"PATH": path, "HOME": str(home), "TMPDIR": str(temporary), "COLUMNS": "110", "OMP_NUM_THREADS": "1"}
