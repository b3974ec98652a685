"""The messages of memfit, as its sources have them: its errors, its notices, and the texts of its native parts.

A part that only a run knows is `...`. A name stands for what the same file assigns or passes to it, if that is text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path

from memfit import errors

SOURCE = Path(__file__).parents[1] / "src" / "memfit"
GAP = "..."
EXIT_CODES = {
    name: value.exit_code
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.MemfitError)
}
"""The exit code of the command line for each class of errors."""
_MOST = 12  # texts of one message; with more of them, what varies is a gap
_DEEPEST = 4


@dataclass(frozen=True, order=True)
class Message:
    """One message: the class of the error, or `notice`; its words; its own cause and remedy; and the file it is in."""

    kind: str
    what: str
    why: str
    remedy: str
    file: str


def messages() -> list[Message]:
    """Return every message of the package and of the engine, each once."""
    from tools.native_messages import native_messages

    found = [message for path in sorted(SOURCE.rglob("*.py")) for message in _Module(path).messages()]
    return sorted({message.what: message for message in [*found, *native_messages()]}.values())


def joined(parts: Iterable[str]) -> str:
    """Return the parts as one text, with one gap for several beside each other."""
    return re.sub(r"\.\.\.(?:\s*\.\.\.)+", GAP, "".join(parts))


def trimmed(text: str) -> str:
    """Return a message as it is listed: without memfit's name before it, on one line."""
    return " ".join(text.removeprefix("memfit: ").split())


class _Module:
    """One file of the package, and what its names stand for."""

    def __init__(self, path: Path) -> None:
        self.file = str(path.relative_to(SOURCE))
        self.tree = ast.parse(path.read_text())
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def messages(self) -> Iterator[Message]:
        """Yield what the file raises and says, except for finished messages that it only hands on."""
        for node in self._calls:
            name = _name(node.func)
            if name in ("say", "say_for_all", "announce") and node.args:
                yield from self._message("notice", node)
            elif name in EXIT_CODES and node.args:
                is_bare = isinstance(node.func, ast.Name)
                yield from self._message(self._foreign.get(name, name) if is_bare else name, node)

    def _message(self, kind: str, node: ast.Call) -> Iterator[Message]:
        given = {keyword.arg: filter(None, self.texts(keyword.value)) for keyword in node.keywords}
        why, remedy = (", or: ".join(given.get(name, [])) for name in ("why", "remedy"))
        for text in self.texts(node.args[0]):
            what, rest, more = text.partition("\n  why: ")  # a finished message has its cause and remedy in it
            own, _, do = more.partition("\n  try: ")
            if trimmed(what) != GAP:
                cause, cure = (own, do) if rest else (why, remedy)
                yield Message(kind, trimmed(what), trimmed(cause), trimmed(cure), self.file)

    @cached_property
    def _calls(self) -> list[ast.Call]:
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @cached_property
    def _foreign(self) -> dict[str, str]:
        """Return another library's classes that have the name of one of memfit's."""
        return {
            alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("memfit")
            for alias in node.names
        }

    @cached_property
    def _functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}

    def texts(self, node: ast.expr, depth: int = 0) -> list[str]:
        """Return the texts that `node` may be, each with gaps for what is not known here."""
        found = sorted({joined([text]) for text in self._texts(node, depth)}) if depth < _DEEPEST else [GAP]
        return found if 0 < len(found) <= _MOST else [GAP]

    def _texts(self, node: ast.expr, depth: int) -> Iterable[str]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Constant(value=None):
                return [""]
            case ast.JoinedStr(values=parts):
                return self._product(parts, depth)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._product([left, right], depth)
            case ast.IfExp(body=body, orelse=orelse):
                return [*self.texts(body, depth), *self.texts(orelse, depth)]
            case ast.BoolOp(values=values):
                return [text for value in values for text in self.texts(value, depth)]
            case ast.FormattedValue(value=value):
                return self._texts(value, depth + 1) if isinstance(value, ast.Name | ast.Call) else [GAP]
            case ast.Name():
                return self._named(node, depth + 1)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions:
                returns = (n.value for n in ast.walk(self._functions[name]) if isinstance(n, ast.Return) and n.value)
                return [text for value in returns for text in self.texts(value, depth + 1)]
        return [GAP]

    def _product(self, parts: list[ast.expr], depth: int) -> list[str]:
        texts = [self.texts(part, depth) for part in parts]
        while prod(map(len, texts)) > _MOST:
            texts[max(range(len(texts)), key=lambda at: len(texts[at]))] = [GAP]
        return ["".join(chosen) for chosen in product(*texts)]

    def _named(self, name: ast.Name, depth: int) -> list[str]:
        """Return the texts that are assigned to a name, or passed for it, in this file."""
        function = self._function_of(name)
        if function is not None:
            parameters = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
            if name.id in parameters:
                return self._passed(function, name.id, parameters, depth)
        for scope in (function, self.tree):
            values = list(_assigned(scope, name.id)) if scope is not None else []
            if values:
                return [text for value in values for text in self.texts(value, depth)]
        return [GAP]

    def _passed(self, function: ast.FunctionDef, name: str, parameters: list[str], depth: int) -> list[str]:
        at = parameters.index(name) - (parameters[0] in ("self", "cls"))
        found: list[str] = []
        for call in self._calls:
            if _name(call.func) != function.name:
                continue
            given = [keyword.value for keyword in call.keywords if keyword.arg == name] or call.args[at : at + 1]
            found += self.texts(given[0], depth) if given else []
        return found or [GAP]

    def _function_of(self, node: ast.AST) -> ast.FunctionDef | None:
        while node in self._parents:
            node = self._parents[node]
            if isinstance(node, ast.FunctionDef):
                return node
        return None


def _assigned(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield what `name` is assigned in a function, or at the top of a file."""
    for node in scope.body if isinstance(scope, ast.Module) else ast.walk(scope):
        match node:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                yield value
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value) if found == name:
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value) if name in map(_name, targets):
                at = [*map(_name, targets)].index(name)
                yield value.elts[at] if isinstance(value, ast.Tuple) else ast.Constant(GAP)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
