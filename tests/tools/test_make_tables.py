"""The documents' tables are made of the results there are."""

import pytest

from benchmarks.common.paths import RESULTS
from tools.make_tables import TABLES, filled, made


@pytest.mark.parametrize("name", [name for name in TABLES if (RESULTS / f"{name}.json").exists()])
def test_tables_are_made_of_the_results_there_are(name):
    lines = made(name).splitlines()
    assert len(lines) > 2
    assert len({line.count(" | ") for line in lines}) == 1


def test_a_page_is_filled_between_its_markers_only(monkeypatch):
    monkeypatch.setattr("tools.make_tables.made", lambda name: "| new |")
    page = "before <!-- TABLE:rss -->\nold\n<!-- END:rss --> after"
    assert filled(page) == "before <!-- TABLE:rss -->\n\n| new |\n\n<!-- END:rss --> after"
    assert filled("nothing here") == "nothing here"
