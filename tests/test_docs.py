"""The documents name what there is."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[1] / "docs"


def test_the_guide_has_a_row_for_every_statistic():
    from memfit.running.session import Stats

    guide = (DOCS / "guide.md").read_text()
    assert [field.name for field in dataclasses.fields(Stats) if f"`{field.name}`" not in guide] == []


def test_the_guide_has_every_exit_code():
    from memfit import errors

    guide = (DOCS / "guide.md").read_text()
    codes = {
        cls.exit_code for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.MemfitError)
    }
    assert len(codes) > 4 and all(f"\n| {code} | " in guide for code in codes)


def test_the_page_of_public_names_is_up_to_date():
    from tools.make_api import page

    assert (DOCS / "api.md").read_text() == page(), "run python tools/make_api.py"


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
