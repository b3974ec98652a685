"""Which parts of the benchmarks may know which, by reading every module's source."""

from benchmarks.common.paths import ROOT
from test_imports import imports, parsed, top_packages, violations

BENCHMARKS = ROOT / "benchmarks"
# What each folder may import of the others; its own modules always. What runs by name is at the top.
MAY_IMPORT = {
    "common": set(), "cpu": {"common"}, "paper": {"common"}, "offline": {"common", "paper"}, "gpu": {"common"}
}  # fmt: skip
MODULES = sorted(path for folder in MAY_IMPORT for path in (BENCHMARKS / folder).glob("*.py"))


def folders_of(modules):
    return {name.split(".")[1] for name in modules if name.startswith("benchmarks.")}


def test_a_folder_imports_only_itself_and_what_all_share():
    def forbidden(path):
        found = folders_of(name for name in imports(parsed(path), lazy=True) if name is not None)
        return found - MAY_IMPORT[path.parent.name] - {path.parent.name}

    assert violations(MODULES, forbidden) == {}


def test_nothing_is_found_by_changing_the_path_of_modules():
    named = {"sys.path"}
    paths = BENCHMARKS.rglob("*.py")
    assert violations(paths, lambda path: {name for name in named if name in path.read_text()}) == {}


def test_the_package_knows_no_benchmarks():
    outside = {"benchmarks", "tools", "tests"}

    def forbidden(path):
        source = path.read_text()  # which names what it imports: most modules need no parsing
        return top_packages(path) & outside if any(name in source for name in outside) else set()

    assert violations((ROOT / "src").rglob("*.py"), forbidden) == {}
