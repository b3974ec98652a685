"""What goes wrong before the engine runs: each is an EngineError that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memfit.errors import EngineError
from memfit.running import engine

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """`engine.load` as in a fresh process with an empty cache; the engine of this process is not touched."""
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "cache"))
    return engine.load.__wrapped__


def test_without_a_compiler_the_error_names_how_to_get_one(load, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(EngineError) as caught:
        load()
    assert "there is no C++ compiler" in caught.value.what
    assert "'no-such-compiler' is not on the PATH" in caught.value.why
    assert "apt-get install g++" in caught.value.remedy and "CXX" in caught.value.remedy


def test_with_nothing_on_the_path_there_is_no_compiler(load, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="'c\\+\\+' is not on the PATH"):
        load()


def test_a_compiler_that_fails_is_quoted(load, monkeypatch, tmp_path):
    broken = tmp_path / "c++"
    broken.write_text(
        "#!/bin/sh\necho 'g++ (GCC) 12.2.0'\n[ \"$1\" = -v ] && exit 0\necho 'fatal: it broke' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(EngineError) as caught:
        load()
    assert "could not be built" in caught.value.what
    assert "memfit doctor" in caught.value.remedy and str(broken) in caught.value.remedy
    assert not engine.cached_library().exists()
    assert list(engine.cached_library().parent.iterdir()) == [engine.cached_library().parent / "lock"]


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(1000)])
def test_a_damaged_library_is_named_with_the_folder_to_remove(load, content):
    library = engine.cached_library()
    library.parent.mkdir(parents=True)
    library.write_bytes(content)
    with pytest.raises(EngineError) as caught:
        load()
    assert "could not be loaded" in caught.value.what
    assert str(library.parent) in caught.value.remedy


def test_a_library_of_something_else_is_an_engine_error(load):
    """A real shared library, but without the engine in it."""
    other = Path(sys.modules["_ssl"].__file__ if "_ssl" in sys.modules else __import__("_ssl").__file__)
    library = engine.cached_library()
    library.parent.mkdir(parents=True)
    library.write_bytes(other.read_bytes())
    with pytest.raises(EngineError, match="could not be loaded"):
        load()


def test_missing_sources_are_named_with_a_remedy(monkeypatch, tmp_path, load):
    monkeypatch.setattr(engine, "__file__", str(tmp_path / "site-packages/memfit/running/engine.py"))
    with pytest.raises(EngineError) as caught:
        load()
    assert "sources of the native engine are missing" in caught.value.what
    assert str(tmp_path) in caught.value.why and "pip install" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder that nobody can write to, which takes root here")
def test_a_cache_that_cannot_be_written_is_named(load, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE", "/proc/memfit")
    with pytest.raises(EngineError, match="/proc/memfit"):
        load()


def test_the_cache_is_another_one_for_another_torch_and_for_other_flags(monkeypatch):
    paths = {engine.cached_library()}
    monkeypatch.setattr(engine.torch, "__version__", "9.9.9")
    paths.add(engine.cached_library())
    monkeypatch.setattr(engine, "_FLAGS", ("-O0",))
    paths.add(engine.cached_library())
    assert len(paths) == 3
    assert len([path for path in paths if "9.9.9" in str(path)]) == 2


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("MEMFIT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert engine.cached_library().is_relative_to(tmp_path / "memfit")
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "own"))
    assert engine.cached_library().is_relative_to(tmp_path / "own")
    monkeypatch.setenv("MEMFIT_CACHE", "~/own")
    assert engine.cached_library().is_relative_to(Path.home() / "own")


def test_the_sources_in_use_are_those_of_the_package_under_test():
    folder = engine._source_folder()
    assert (folder / "engine" / "unity.cc").is_file() and (folder / "engine" / "bindings.cpp").is_file()


BUILD = """
import sys
from pathlib import Path
from memfit.running import engine

def compile_slowly(folder):
    import time
    time.sleep(1)
    (folder / "memfit_engine.so").write_text("built")
    with open(sys.argv[1], "a") as log:
        log.write("built\\n")

engine._compile = compile_slowly
library = engine.cached_library()
try:
    engine.load()
except Exception:
    pass  # what was "built" is no library
assert library.read_text() == "built"
"""


@pytest.mark.slow
def test_two_processes_build_once(tmp_path):
    environment = os.environ | {"MEMFIT_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", BUILD, str(tmp_path / "log")]
    processes = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert (tmp_path / "log").read_text() == "built\n"


@pytest.mark.slow
def test_a_build_that_is_killed_blocks_nobody(tmp_path):
    environment = os.environ | {"MEMFIT_CACHE": str(tmp_path / "cache")}
    forever = BUILD.replace("time.sleep(1)", "print('building', flush=True); time.sleep(600)")
    command = [sys.executable, "-c", forever, str(tmp_path / "log")]
    first = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert first.stdout.readline() == "building\n"
    first.kill()
    first.wait()
    command[2] = BUILD
    assert subprocess.run(command, env=environment, timeout=120, capture_output=True).returncode == 0
