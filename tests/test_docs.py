"""The documents name what there is."""

import dataclasses
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
