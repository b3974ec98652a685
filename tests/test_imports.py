"""Holds the import edges of the architecture by reading every module's source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

import memfit

SOURCE = Path(__file__).parents[1] / "src" / "memfit"

# Lower levels may be imported by higher ones, and `errors` by all; a package may import itself.
LEVELS = [
    {"ranks", "terminal"},
    {"errors", "messages", "progress", "shapes", "units", "arrays", "_native", "_version"},
    {"ir"},
    {"events", "machine"},
    {"files", "validate", "validate_joint", "validate_maps", "validate_plan"},
    {"simulate"},
    {"reporting"},
    {"planning"},
    {"baselines"},
    {"comparing"},
    {"cli"},
]
# These drive torch, and stand beside the levels: what each may import besides levels below comparing.
TORCH_SIDE = {"tracing": set(), "running": {"tracing"}, "integrations": {"running", "comparing"}}
# Reports show finished values: only who makes such values, or prints them, needs reports, and they need nothing else.
REPORTERS = {"comparing", "cli", "integrations"}
REPORTED = {"errors", "units", "arrays", "ir"}
# The rooms of `running`, likewise: lower ones may be imported by higher ones.
ROOMS = [{"frames", "host"}, {"engine"}, {"doors", "machine", "planned"}, {"session"}, {"scripts"}]
# `memfit --help` imports these: the standard library and names without weight.
LIGHT = {
    "memfit", "memfit._version", "memfit.errors", "memfit.messages", "memfit.ranks", "memfit.terminal", "memfit.cli",
}  # fmt: skip


def level(package: str) -> int:
    return next(index for index, names in enumerate(LEVELS) if package in names)


def may_import(importer: str, imported: str) -> bool:
    if importer == imported or imported == "errors" or importer == "__main__":
        return importer != "__main__" or imported == "cli"
    if imported == "reporting":
        return importer in REPORTERS
    if importer == "reporting":
        return imported in REPORTED
    if imported == "integrations":  # for a user's own script, or notebook
        return False
    if importer in TORCH_SIDE:
        below = imported not in TORCH_SIDE and level(imported) < level("comparing")
        return below or imported in TORCH_SIDE[importer]
    if imported in TORCH_SIDE:
        return importer == "cli"
    return level(imported) < level(importer)


def imports(tree: ast.AST, *, lazy: bool) -> Iterator[str]:
    """Modules imported in `tree`, with `lazy` also inside functions; never those for type checking alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module in ("memfit", "memfit.running"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from imports(ast.Module(node.orelse, []), lazy=lazy)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imports(node, lazy=lazy)


def packages_of(modules: Iterator[str]) -> set[str]:
    """The parts of memfit that `modules` name."""
    known = set().union(*LEVELS, TORCH_SIDE)
    return {name.split(".")[1] for name in modules if name.startswith("memfit.")} & known


def top_names(tree: ast.AST) -> Iterator[str]:
    """What `tree` takes from `memfit` itself, in which every part comes together: names that are not modules."""
    known = set().union(*LEVELS, TORCH_SIDE)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name == "memfit")
        elif isinstance(node, ast.ImportFrom) and node.module == "memfit":
            yield from (alias.name for alias in node.names if alias.name not in known)


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(), str(path))


def owner(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def violations(paths: Iterable[Path], forbidden: Callable[[Path], set[str]]) -> dict[str, set[str]]:
    """The names that each file must not import, by file; a file without any is left out."""
    found = {str(path): forbidden(path) for path in paths}
    assert found, "there is no file to look at"
    return {path: names for path, names in found.items() if names}


def test_imports_follow_the_levels():
    def forbidden(path: Path) -> set[str]:
        found = packages_of(imports(parsed(path), lazy=True))
        return {name for name in found if not may_import(owner(path), name)}

    assert violations(MODULES, forbidden) == {}


def test_the_rooms_of_running_import_only_lower_ones():
    def forbidden(path: Path) -> set[str]:
        names = (name.split(".") for name in imports(parsed(path), lazy=True) if name.startswith("memfit.running."))
        return {name[2] for name in names} - {path.parent.name}.union(*ROOMS[: room(path.parent.name)])

    assert violations((SOURCE / "running").glob("*/*.py"), forbidden) == {}


def room(name: str) -> int:
    return next(index for index, names in enumerate(ROOMS) if name in names)


def test_every_module_of_running_is_in_a_room():
    rooms = {path.stem for path in (SOURCE / "running").iterdir()} - {"__init__", "__pycache__"}
    assert rooms == set().union(*ROOMS)


def test_no_module_imports_the_top_of_the_package():
    assert violations(MODULES, lambda path: set(top_names(parsed(path)))) == {}


def test_only_the_torch_side_imports_torch():
    others = [path for path in MODULES if owner(path) not in TORCH_SIDE]
    assert violations(others, lambda path: top_packages(path) & {"torch"}) == {}


def top_packages(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(parsed(path), lazy=True) if name is not None}


def test_the_command_line_imports_nothing_heavy_before_it_runs():
    def forbidden(path: Path) -> set[str]:
        eager = set(imports(parsed(path), lazy=False))
        heavy = {name for name in eager if name.split(".")[0] in ("torch", "numpy", "rich", "memfit")} - LIGHT
        return {name for name in heavy if not name.startswith(("memfit.cli", "memfit._version"))}

    assert violations((SOURCE / "cli").glob("*.py"), forbidden) == {}


def test_the_public_api_does_not_import_torch_by_itself():
    assert "torch" not in {name.split(".")[0] for name in imports(parsed(SOURCE / "__init__.py"), lazy=False)}


def test_every_part_of_the_package_has_a_level():
    known = set().union(*LEVELS, TORCH_SIDE, {"__main__"})
    assert {owner(path) for path in MODULES} <= known


def test_the_package_under_test_is_the_one_that_is_read():
    installed = Path(memfit.__file__).parent
    assert all((installed / path.relative_to(SOURCE)).read_bytes() == path.read_bytes() for path in MODULES)


SNIPPETS = [
    ("import memfit.planning.lifetimes", True, {"planning"}),
    ("from memfit import files", True, {"files"}),
    ("from memfit.ir import Trace", True, {"ir"}),
    ("def f():\n    import memfit.running", True, {"running"}),
    ("def f():\n    import memfit.running", False, set()),
    ("try:\n    import memfit.running\nexcept ImportError:\n    pass", False, {"running"}),
    ("if TYPE_CHECKING:\n    import memfit.running\nelse:\n    import memfit.ir", True, {"ir"}),
]


@pytest.mark.parametrize(("source", "lazy", "found"), SNIPPETS)
def test_the_reader_sees_each_way_to_import(source, lazy, found):
    assert packages_of(imports(ast.parse(source), lazy=lazy)) == found


def test_the_reader_sees_what_is_taken_from_the_top():
    assert list(top_names(ast.parse("import memfit\nfrom memfit import files, Trace"))) == ["memfit", "Trace"]


def test_the_levels_point_one_way():
    assert may_import("planning", "ir") and not may_import("ir", "planning")
    assert may_import("units", "errors") and not may_import("errors", "units")
    assert may_import("cli", "running") and not may_import("planning", "running")
    assert may_import("running", "planning") and not may_import("running", "cli")
    assert not may_import("planning", "baselines") and not may_import("validate", "files")
    assert may_import("comparing", "baselines") and not may_import("baselines", "comparing")
    assert may_import("comparing", "reporting") and not may_import("planning", "reporting")
    assert not may_import("reporting", "simulate") and not may_import("running", "reporting")
    assert may_import("integrations", "running") and not may_import("running", "integrations")
    assert not may_import("cli", "integrations") and not may_import("integrations", "cli")
    assert may_import("integrations", "comparing") and not may_import("running", "comparing")
