"""The documents name what there is."""

import dataclasses
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[1] / "docs"


def test_the_guides_table_of_statistics_is_up_to_date():
    from tools import make_statistics

    assert make_statistics.page() == make_statistics.GUIDE.read_text(), "python tools/make_statistics.py"


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
