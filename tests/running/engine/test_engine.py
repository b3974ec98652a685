"""What goes wrong before the engine runs: each is an EngineError that says what to do."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from memfit.errors import EngineError
from memfit.running.engine import loader as engine
from memfit.running.engine.cache import obtain
from memfit.running.engine.compiling import loaded_runtime

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


@pytest.mark.parametrize("variable", ["/bin/false", "/bin/false -m64", "'unbalanced"])
def test_a_compiler_that_cannot_run_is_an_engine_error(load, monkeypatch, variable):
    monkeypatch.setenv("CXX", variable)
    with pytest.raises(EngineError, match="could not be built|there is no C"):
        load()


def test_the_compiler_may_have_words_behind_its_name_or_be_empty(monkeypatch):
    monkeypatch.setenv("CXX", "")
    plain = engine.compiler()
    assert len(plain) == 1 and plain[0].endswith("c++")
    monkeypatch.setenv("CXX", "c++ -m64 '-DA=b c'")
    assert engine.compiler() == [*plain, "-m64", "-DA=b c"]


def test_a_compiler_of_several_words_gets_all_of_them(load, monkeypatch, tmp_path):
    wrapper = tmp_path / "ccache"
    wrapper.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {tmp_path}/log\nexit 1\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", f"{wrapper} g++ '-DA=b c'")
    with pytest.raises(EngineError, match="could not be built"):
        load()
    words = (tmp_path / "log").read_text().splitlines()
    assert words[:2] == ["g++", "-DA=b c"] and engine.FLAGS[0] in words and any(word.endswith(".cc") for word in words)


@pytest.fixture
def built(load, monkeypatch) -> list[Path]:
    """Stands in for the compiler: what it "builds" is no library. The folders it was called for."""
    folders: list[Path] = []

    def compile(folder: Path) -> None:
        folders.append(folder)
        (folder / "memfit_engine.so").write_bytes(b"\x7fELF" + bytes(range(256)) * 64)

    monkeypatch.setattr(engine, "_compile", compile)
    return folders


def test_what_was_built_but_is_no_engine_is_named_with_the_folder_to_remove(load, built):
    for _ in range(2):
        with pytest.raises(EngineError) as caught:
            load()
        assert "could not be loaded" in caught.value.what
        assert str(engine.cached_library().parent) in caught.value.remedy
    assert len(built) == 1


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:4096], lambda b: b[:4096] + bytes(len(b) - 4096)])
def test_a_library_that_is_cut_short_or_has_zeros_in_it_is_built_anew_and_never_loaded(load, built, damage):
    library = engine.cached_library()
    with pytest.raises(EngineError):
        load()
    whole = library.read_bytes()
    library.write_bytes(damage(whole))
    (library.parent / "tmpkilled").mkdir()  # of a build that was killed
    with pytest.raises(EngineError):
        load()
    assert library.read_bytes() == whole and len(built) == 2
    assert {path.name for path in library.parent.iterdir()} == {"lock", library.name, "memfit_engine.sum"}


@pytest.mark.parametrize("of_others", [0, 1])
def test_an_engine_is_not_loaded_from_a_folder_that_others_can_write(load, built, of_others):
    folder = engine.cached_library().parent
    with pytest.raises(EngineError, match="could not be loaded"):
        load()
    assert folder.stat().st_mode & 0o777 == 0o700 == folder.parent.stat().st_mode & 0o777
    unsafe = (folder, folder.parent)[of_others]
    unsafe.chmod(0o777)
    if unsafe == folder:
        with pytest.raises(EngineError, match="not safe"):
            load()
    else:  # what others may have put into one's own cache is another's
        with pytest.raises(EngineError, match="could not be loaded"):
            load()
        assert unsafe.stat().st_mode & 0o777 == 0o755
    assert len(built) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_an_engine_of_another_user_is_not_loaded(load, built):
    folder = engine.cached_library().parent
    folder.mkdir(parents=True, mode=0o755)
    os.chown(folder, 12345, 12345)
    with pytest.raises(EngineError, match="not safe") as caught:
        load()
    assert "another user" in caught.value.why and "MEMFIT_CACHE" in caught.value.remedy and not built


def test_the_lock_follows_no_link_and_empties_no_file(load, built, tmp_path):
    folder = engine.cached_library().parent
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o700)
    (tmp_path / "precious").write_text("text")
    (folder / "lock").symlink_to(tmp_path / "precious")
    with pytest.raises(EngineError, match="cannot be written"):
        load()
    assert (tmp_path / "precious").read_text() == "text" and not built


def test_without_a_home_the_cache_is_a_folder_of_ones_own_among_the_temporary_ones(monkeypatch, tmp_path):
    for name in ("MEMFIT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert engine.cache_folder() == tmp_path / f"memfit-{os.geteuid()}"


def test_missing_sources_are_named_with_a_remedy(monkeypatch, tmp_path, load):
    monkeypatch.setattr(engine, "__file__", str(tmp_path / "site-packages/memfit/running/engine/loader.py"))
    with pytest.raises(EngineError) as caught:
        load()
    assert "sources of the native engine are missing" in caught.value.what
    assert str(tmp_path) in caught.value.why and "pip install" in caught.value.remedy


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder that nobody can write to, which takes root here")
def test_a_cache_that_cannot_be_written_is_named(load, monkeypatch):
    monkeypatch.setenv("MEMFIT_CACHE", "/proc/memfit")
    with pytest.raises(EngineError, match="/proc/memfit"):
        load()


def test_a_file_system_without_locks_is_named_with_a_way_out(load, monkeypatch):
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(EngineError, match=r"cache/torch-.* cannot be locked\n.*No locks.*\n.*in MEMFIT_CACHE"):
        load()


def test_who_waits_for_the_build_of_another_process_says_so(load, tmp_path, capsys):
    folder = engine.cached_library().parent
    folder.mkdir(parents=True, mode=0o700)
    with open(folder / "lock", "w") as lock, ThreadPoolExecutor() as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = pool.submit(obtain, folder / "late.so", lambda place: (place / "late.so").write_text("built"))
        while "another process builds the engine; waiting for it" not in capsys.readouterr().err:
            time.sleep(0.01)
        assert not waiting.done()
        fcntl.flock(lock, fcntl.LOCK_UN)
        waiting.result(timeout=60)
    assert (folder / "late.so").read_text() == "built"


def test_the_cache_is_another_one_for_another_torch_other_flags_and_other_units(monkeypatch):
    paths = {engine.cached_library()}
    monkeypatch.setattr(engine.torch, "__version__", "9.9.9")
    paths.add(engine.cached_library())
    monkeypatch.setattr(engine, "FLAGS", ("-O0",))
    paths.add(engine.cached_library())
    divided = engine.units(engine._source_folder(), cuda=False)
    monkeypatch.setattr(engine, "units", lambda *_: [replace(divided[0], optimize=("-O0",)), *divided[1:]])
    paths.add(engine.cached_library())
    assert len(paths) == 4
    assert len([path for path in paths if "9.9.9" in str(path)]) == 3


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
    assert (folder / "engine" / "engine.cpp").is_file() and (folder / "common").is_dir()


def test_a_build_is_told_with_the_seconds_that_the_last_one_took(load, monkeypatch, capsys):
    now = [0.0]

    def compile_it(folder: Path) -> None:
        now[0] += 41.2
        (folder / "memfit_engine.so").write_text("built")

    monkeypatch.setattr(engine, "compiler", lambda: ["c++"])
    monkeypatch.setattr(engine, "_compile", compile_it)
    monkeypatch.setattr(engine.time, "monotonic", lambda: now[0])
    engine.build()
    first, last = capsys.readouterr().err.splitlines()
    assert "building the engine for torch" in first and first.endswith("(once, about 60 s) ...")
    engine.cached_library().unlink()
    engine.build()
    again = capsys.readouterr().err.splitlines()
    assert last == "memfit: the engine is built (41 s)" and again[0].endswith("(once, about 41 s) ...")


BUILD = """
import sys
from pathlib import Path
from memfit.running.engine import loader as engine

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
assert library.read_text() == "built" and library.with_suffix(".sum").exists()
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


def test_a_library_is_linked_against_the_runtime_that_torch_has_loaded_whatever_the_compiler_prefers(tmp_path):
    (tmp_path / "library.cpp").write_text(
        "#include <string>\nstd::string text(double x) { return std::to_string(x); }\n"
    )
    (runtime,) = loaded_runtime()
    command = [*engine.compiler(), "-shared", "-fPIC", "-static-libstdc++", "library.cpp", "-o", "library.so"]

    def needed(*links: str) -> str:
        subprocess.run([*command, *links], cwd=tmp_path, check=True)
        return subprocess.check_output(["readelf", "-d", tmp_path / "library.so"], text=True)

    assert "libstdc++.so.6" not in needed()
    assert "libstdc++.so.6" in needed(runtime)
    assert runtime in Path("/proc/self/maps").read_text()
