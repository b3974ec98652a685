"""A process knows which rank it is from its environment, has files of its own, and names itself in messages."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from memfit import ranks
from memfit.errors import BudgetError
from memfit.messages import say, say_error, say_for_all

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def started(monkeypatch):
    """Sets the variables that a launcher sets."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def start(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return start


def test_a_process_of_its_own_is_no_rank(started):
    assert (ranks.this_rank(), ranks.local_rank(), ranks.world_size(), ranks.local_world_size()) == (None, None, 1, 1)
    assert ranks.speaks_for_all() and ranks.file_of_rank("stats.json") == "stats.json"


def test_one_process_that_a_launcher_has_started_is_no_rank_either(started):
    started(RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
    assert ranks.this_rank() is None and ranks.local_rank() == 0


def test_a_launcher_tells_each_process_its_rank(started):
    started(RANK=5, WORLD_SIZE=8, LOCAL_RANK=1, LOCAL_WORLD_SIZE=4)
    assert (ranks.this_rank(), ranks.local_rank(), ranks.world_size(), ranks.local_world_size()) == (5, 1, 8, 4)
    assert not ranks.speaks_for_all()
    started(RANK=0)
    assert ranks.this_rank() == 0 and ranks.speaks_for_all()


@pytest.mark.parametrize("text", ["", "-1", "one", "1.5"])
def test_what_is_no_number_says_nothing(started, text):
    started(RANK=text, WORLD_SIZE=text, LOCAL_RANK=text, LOCAL_WORLD_SIZE=text)
    assert (ranks.this_rank(), ranks.local_rank(), ranks.world_size(), ranks.local_world_size()) == (None, None, 1, 1)


def test_a_group_that_the_script_has_begun_tells_the_rank(started, monkeypatch):
    begun = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3,
                            get_world_size=lambda: 4)  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed", begun)
    assert (ranks.this_rank(), ranks.world_size()) == (3, 4)
    begun.is_initialized = lambda: False
    assert ranks.this_rank() is None


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("stats.json", "stats.rank1.json"),
        ("out/trace.json.gz", "out/trace.rank1.json.gz"),
        ("model.v2.html", "model.v2.rank1.html"),
        ("a.b/stats", "a.b/stats.rank1"),
        (".hidden", ".hidden.rank1"),
    ],
)
def test_each_rank_has_a_file_of_its_own(started, path, own):
    started(RANK=1, WORLD_SIZE=2)
    assert ranks.file_of_rank(path) == own
    assert ranks.file_of_rank(path, 0) == own.replace("rank1", "rank0")


def test_memfits_lines_name_the_rank_and_others_do_not(started, capsys):
    started(RANK=1, WORLD_SIZE=2)
    say("memfit: one\nmemfit: two\n  three of memfit: four")
    say_error(BudgetError("too little", why="so"))
    say_for_all("memfit: alike")
    assert capsys.readouterr().err == (
        "memfit: rank 1: one\nmemfit: rank 1: two\n  three of memfit: four\n"
        "memfit: rank 1: error: too little\n  why: so\n"
    )
    started(RANK=0)
    say_for_all("memfit: alike")
    assert capsys.readouterr().err == "memfit: rank 0: alike\n"


def test_a_process_of_its_own_says_everything_without_a_rank(started, capsys):
    say("memfit: one")
    say_for_all("memfit: two")
    assert capsys.readouterr().err == "memfit: one\nmemfit: two\n"
