"""docs/trainers.md: its snippets run as they are, and its tables are what the callbacks say and log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from memfit.integrations.metrics import CHANGES, LEVELS

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
SNIPPETS = re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LIBRARIES = {"Hugging Face": "transformers", "Lightning": "lightning", "Accelerate": "accelerate", "Keras": "keras"}


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("title", "snippet"), SNIPPETS, ids=[title for title, _ in SNIPPETS])
def test_a_snippet_runs_as_it_is_and_prints_a_figure(tmp_path, monkeypatch, capsys, title, snippet):
    if title in LIBRARIES:
        pytest.importorskip(LIBRARIES[title])
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, title, "exec"), {"__name__": "__main__"})
    figure = re.search(r"(\d+\.\d+)[])]*$", capsys.readouterr().out.strip())
    assert figure is not None and (float(figure[1]) > 0) == (title in LIBRARIES)


def test_there_is_a_snippet_for_every_library():
    assert [title for title, _ in SNIPPETS] == [*LIBRARIES, "Figures"]


def test_the_table_has_every_figure():
    rows = re.findall(r"^\| `(memfit/\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [*LEVELS, *CHANGES]


def test_the_table_of_conflicts_is_up_to_date():
    from tools import make_trainers

    assert make_trainers.page() == PAGE.read_text(), "python -m tools.make_trainers"
