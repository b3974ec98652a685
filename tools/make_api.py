"""Writes docs/api.md, the list of all public names, from their docstrings.

Usage: python -m tools.make_api
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

HEAD = """# Public names

`tools/make_api.py` writes this page from the docstrings; a test holds that it is up to date.

The names on this page are public: within a major version they stay, and keep their meaning. Everything else in the
package is internal, whether or not its name begins with an underscore, and may change in any version. The command line
is public too: [the guide](guide.md) describes it. The nouns are in [words.md](words.md).

Sizes are bytes, and times are what the name says: `_us` microseconds, `_ns` nanoseconds."""


@dataclass(frozen=True)
class Module:
    """A public module, its purpose, and the promised names or members of a class where not all of them are promised."""

    name: str
    purpose: str
    names: tuple[str, ...] = ()
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


SESSION = ("stats", "trace", "signatures", "signature_counts", "planned_iterations", "end_iteration", "watch",
           "log_stats", "hold", "read_bytes")  # fmt: skip

MODULES = (
    Module("memfit", "Train inside a budget, and record iterations.", members={"Session": SESSION}),
    Module("memfit.errors", "All errors, each with the exit code of the command line."),
    Module("memfit.ir", "One recorded iteration and its plan, as plain, immutable data."),
    Module("memfit.files", "Files of traces, plans, timelines, machines, and of other tools."),
    Module("memfit.machine", "Machines to plan for."),
    Module("memfit.planning.packing", "Addresses for lifetimes ([how](packing.md))."),
    Module("memfit.validate", "The checker of placements. It shares no code with the packer."),
    Module("memfit.validate_plan", "The checker of swaps. It shares no code with the planner."),
    Module("memfit.tracing.roofline", "Accelerators for `record_meta`.", ("Accelerator",), {"Accelerator": ()}),
)
"""If no names are given, they are the module's `__all__`, otherwise the functions and classes that it defines."""


def page() -> str:
    """Return the page in Markdown."""
    modules = [(module, import_module(module.name)) for module in MODULES]
    seen: set[int] = set()
    parts = [HEAD, *(part for module, loaded in modules for part in _module(module, loaded, seen))]
    return "\n\n".join(parts) + "\n"


def _module(module: Module, loaded: ModuleType, seen: set[int]) -> Iterator[str]:
    yield f"## `{module.name}`"
    yield module.purpose
    for name in module.names or _names(loaded):
        value = getattr(loaded, name)
        if not callable(value):
            yield _constant(f"{module.name}.{name}", value)
        elif id(value) not in seen:  # a name told once is told at its shortest path
            seen.add(id(value))
            yield from _entry(f"{module.name}.{name}", value, module.members.get(name))


def _names(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=lambda name: _kind(getattr(module, name)))
    return [
        name for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "") == module.__name__
    ]  # fmt: skip


def _kind(value: object) -> int:
    """Return the order on the page: functions, then classes, errors and constants."""
    if isinstance(value, type):
        return 2 if issubclass(value, Exception) else 1
    return 0 if callable(value) else 3


def _constant(path: str, value: object) -> str:
    text = "the version, as text" if path.endswith("__version__") else f"`{value!r}`"
    return f"### `{path}`\n\nA constant: {text if len(text) < 80 else 'a ' + type(value).__name__}."


def _entry(path: str, value: Any, members: tuple[str, ...] | None) -> Iterator[str]:
    yield f"### `{path}`"
    if isinstance(value, type):
        yield from _class(value, members)
        return
    yield _code(path.rsplit(".", 1)[-1], value)
    yield from _docstring(value.__doc__ or "")


def _class(cls: type, members: tuple[str, ...] | None) -> Iterator[str]:
    if issubclass(cls, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        code = getattr(cls, "exit_code", None)
        yield f"An error, derived from {bases}" + (f"; exit code {code}." if code else ".")
    types = _field_types(cls)
    text = inspect.cleandoc(cls.__doc__ or "")
    yield from _docstring(text, types)
    if is_dataclass(cls) and "Attributes:" not in text:
        yield "Fields: " + ", ".join(f"`{name}` ({types[name]})" for name in cls.__dataclass_fields__) + "."
    if issubclass(cls, Enum):
        yield "\n".join(f"- `{member.name}`: `{member.value!r}`" for member in cls)
        return
    for name in _members(cls) if members is None else members:
        yield from _member(cls, name)


def _field_types(cls: type) -> dict[str, str]:
    return {
        name: _plain(kind) for base in reversed(cls.__mro__) for name, kind in inspect.get_annotations(base).items()
    }


def _members(cls: type) -> list[str]:
    kinds = (property, classmethod, staticmethod)
    return [
        name for name, value in vars(cls).items()
        if not name.startswith("_") and (isinstance(value, kinds) or inspect.isfunction(value))
    ]  # fmt: skip


def _member(cls: type, name: str) -> Iterator[str]:
    value = inspect.getattr_static(cls, name)
    if isinstance(value, property):
        kind = value.fget.__annotations__.get("return", "") if value.fget else ""
        yield f"#### `{cls.__name__}.{name}: {_plain(kind)}`"
        yield from _docstring(value.__doc__ or "")
        return
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    yield f"#### `{cls.__name__}.{name}`"
    yield _code(name, function)
    yield from _docstring(function.__doc__ or "")


def _code(name: str, function: Callable[..., object]) -> str:
    """Return the signature as a block of code, one parameter a line if it is long."""
    signature = inspect.signature(function)
    parameters: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parameters.append("*")
        parameters.append(_parameter(parameter))
    result = "" if signature.return_annotation is signature.empty else f" -> {_plain(signature.return_annotation)}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) > 100:
        line = f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){result}"
    return f"```python\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    kind = "" if parameter.annotation is parameter.empty else f": {_plain(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}{kind}{default}"


def _plain(annotation: object) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


_SECTION = re.compile(r"^(Arguments|Attributes|Returns|Raises):$")
_ITEM = re.compile(r"^ {4}(\w+): (.*)$")


def _docstring(text: str, types: dict[str, str] | None = None) -> Iterator[str]:
    """Yield a docstring's paragraphs, and its sections as lists."""
    for block in re.split(r"\n\n", inspect.cleandoc(text)):
        head, *rest = block.splitlines() or [""]
        section = _SECTION.match(head)
        if section is None:
            yield block
        elif section[1] == "Returns":
            yield "**Returns**"
            yield " ".join(line.strip() for line in rest)
        else:
            yield f"**{section[1]}**"
            yield "\n".join(_items(rest, types if section[1] == "Attributes" else None))


def _items(lines: list[str], types: dict[str, str] | None) -> list[str]:
    items: list[str] = []
    for line in lines:
        item = _ITEM.match(line)
        if item is None:
            items[-1] += " " + line.strip()
            continue
        kind = f" ({types[item[1]]})" if types and item[1] in types else ""
        items.append(f"- `{item[1]}`{kind}: {item[2]}")
    return items


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
