"""Which parts of the benchmarks may know which, by reading every module's source."""

import pytest

from benchmarks.common.paths import ROOT
from test_imports import imports, parsed

BENCHMARKS = ROOT / "benchmarks"
# What each folder may import of the others; its own modules always. What runs by name is at the top.
MAY_IMPORT = {
    "common": set(), "cpu": {"common"}, "paper": {"common"}, "offline": {"common", "paper"}, "gpu": {"common"}
}  # fmt: skip
MODULES = sorted(path for folder in MAY_IMPORT for path in (BENCHMARKS / folder).glob("*.py"))


def folders_of(modules):
    return {name.split(".")[1] for name in modules if name.startswith("benchmarks.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_a_folder_imports_only_itself_and_what_all_share(path):
    folder = path.parent.name
    found = {name for name in imports(parsed(path), lazy=True) if name is not None}
    assert folders_of(found) <= MAY_IMPORT[folder] | {folder}


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: str(path.relative_to(BENCHMARKS)))
def test_nothing_is_found_by_changing_the_path_of_modules(path):
    assert "sys.path" not in path.read_text()


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda path: path.name)
def test_the_package_knows_no_benchmarks(path):
    top = {name.split(".")[0] for name in imports(parsed(path), lazy=True) if name is not None}
    assert not top & {"benchmarks", "tools", "tests"}
