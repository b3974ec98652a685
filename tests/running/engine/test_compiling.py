"""The engine's translation units, and the compilers that run beside each other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memfit.progress import Work
from memfit.running.engine import compiling, loader
from memfit.running.engine.compiling import CompilationError, _Compilers, units

pytestmark = pytest.mark.timeout(120)
FOREVER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def source() -> Path:
    return loader._source_folder()


def test_every_source_is_in_one_unit(source):
    included = [path for unit in units(source, cuda=True) for path in unit.sources]
    wholes = {path.parent for path in map(Path, included) if path.suffix == ".cc"}
    found = {path.relative_to(source) for path in (source / "engine").rglob("*.cpp")}
    assert len(included) == len(set(included))
    assert {path for path in found if path.parent not in wholes} == {
        Path(path) for path in included if not path.endswith(".cc")
    }


def test_the_units_of_whole_folders_include_each_of_their_sources(source):
    for unit in units(source, cuda=True):
        for whole in (source / path for path in unit.sources if path.endswith(".cc")):
            text = whole.read_text()
            assert [path.name for path in whole.parent.glob("*.cpp") if f'#include "{path.name}"' not in text] == []


def test_sources_that_are_named_are_there(source):
    stems = {path.stem for path in (source / "engine").rglob("*.cpp")}
    assert stems >= compiling._BESIDE_BINDINGS


def test_two_compilers_have_as_much_to_do(source):
    weights = [unit.weight for unit in units(source, cuda=False)]
    assert weights == sorted(weights, reverse=True)
    busy = [0, 0]
    for weight in weights:
        busy[busy.index(min(busy))] += weight
    assert max(busy) < 0.56 * sum(busy)


def test_as_many_run_at_once_as_jobs_are_allowed(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "3")
    assert compiling._jobs() == 3
    monkeypatch.setenv("MAX_JOBS", "many")
    assert compiling._jobs() == 1
    monkeypatch.delenv("MAX_JOBS")
    assert compiling._jobs() >= 1


def test_a_failure_is_quoted_and_ends_the_others(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "2")
    fails = [sys.executable, "-c", "import sys; print('line 7: no such thing', file=sys.stderr); sys.exit(3)"]
    with (
        pytest.raises(CompilationError, match=r"(?s)ended with status 3:.*line 7: no such thing"),
        _Compilers() as all_,
    ):
        all_.run([(FOREVER, 1.0), (fails, 1.0), (FOREVER, 1.0)])
    assert not all_._running


def test_an_interrupt_ends_them_all(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "2")

    def interrupted(futures):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt), _Compilers() as all_:
        all_.run([(FOREVER, 1.0), (FOREVER, 1.0)])
    assert not all_._running


def test_what_is_done_is_told_to_the_work_under_way(monkeypatch):
    monkeypatch.setenv("MAX_JOBS", "2")
    work = Work("building", 10.0)
    monkeypatch.setattr(compiling, "under_way", lambda: work)
    seen: list[tuple[float, float]] = []
    monkeypatch.setattr(
        work, "spend", lambda seconds: (Work.spend(work, seconds), seen.append((work._done, work._begun)))
    )
    quick = [sys.executable, "-c", "pass"]
    with _Compilers() as compilers:
        compilers.run([(quick, 5.0), ([*quick, "2"], 3.0), ([*quick, "3"], 2.0)])
    assert len(seen) == 3 and work._done == 10
    assert seen[0][1] == 8 and seen[1][1] == 10  # the third begins when one of the others has ended
