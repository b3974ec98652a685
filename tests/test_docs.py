"""The documents name what there is."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md", *sorted(DOCS.rglob("*.md"))]


def anchors(page):
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text())
    inside = [(page.parent / path if path else page, anchor) for path, anchor in links if "://" not in path]
    assert [str(target) for target, _ in inside if not target.exists()] == []
    assert [f"{target.name}#{anchor}" for target, anchor in inside if anchor and anchor not in anchors(target)] == []


def test_the_first_screen_is_short_and_begins_with_the_two_commands():
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 100
    quickstart = readme.split("## Quickstart")[1].split("##")[0]
    assert "make demo " in quickstart and "make test " in quickstart


def test_the_guides_table_of_statistics_is_up_to_date():
    from tools import make_statistics

    assert make_statistics.page() == make_statistics.GUIDE.read_text(), "python -m tools.make_statistics"


def test_the_guides_table_has_every_statistic():
    from memfit.running.session.stats import Stats
    from tools import make_statistics

    names = [name for name, _ in make_statistics.statistics()]
    assert names == [field.name for field in dataclasses.fields(Stats)]


def test_the_guide_has_every_exit_code():
    from memfit import errors

    guide = (DOCS / "guide.md").read_text()
    codes = {
        cls.exit_code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MemfitError)
    }
    assert len(codes) > 4 and all(f"\n| {code} | " in guide for code in codes)


def test_the_page_of_public_names_is_up_to_date():
    from tools.make_api import page

    assert (DOCS / "api.md").read_text() == page(), "run python -m tools.make_api"


def test_dir_shows_the_public_names_and_nothing_else():
    import memfit

    assert dir(memfit) == sorted(memfit.__all__) and {"session", "record", "load_trace", "MemfitError"} < set(
        dir(memfit)
    )


def test_every_public_name_is_there_without_torch_for_those_that_need_none():
    program = "import sys; sys.modules['torch'] = None; from memfit import Trace, load_trace, save_trace, BudgetError"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_every_function_on_the_page_says_what_it_takes_and_returns():
    import memfit

    for name in ("load_trace", "save_trace", "session", "record", "record_meta"):
        text = getattr(memfit, name).__doc__
        assert "Arguments:" in text and "Raises:" in text and ("Returns:" in text) == (name != "save_trace")


def test_the_guide_has_every_option_of_every_command():
    from memfit.cli import COMMANDS

    guide = (DOCS / "guide.md").read_text()
    for command in COMMANDS:
        section = guide.split(f"### memfit {command}\n")[1].split("\n## ")[0].split("\n### ")[0]
        help_text = subprocess.run(
            [sys.executable, "-m", "memfit", command, "--help"], capture_output=True, text=True, timeout=60
        ).stdout
        options = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", help_text.split("options:")[1])) - {"--help"}
        assert [option for option in options if option not in section] == [], command
