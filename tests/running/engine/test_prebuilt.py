"""Engines that came with the package: which one is taken, and what happens where none fits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import memfit
from cli.helpers_cli import TRAINING
from memfit.errors import EngineError
from memfit.running.engine import loader, prebuilt
from memfit.running.engine.cache import note_sum
from memfit.running.machine.doctor import _compiler

pytestmark = pytest.mark.timeout(300)

NAME = "memfit_engine.so"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A package without engines, an empty cache and no compiler. Puts an engine that is none into the folder named."""
    loader.load()  # this process's own
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "_engines")
    monkeypatch.setenv("MEMFIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")

    def put(folder: str) -> Path:
        library = prebuilt.FOLDER / folder / NAME
        library.parent.mkdir(parents=True)
        library.write_bytes(b"\x7fELF" + bytes(range(256)))
        note_sum(library)
        return library

    return put


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What `load` imports, in place of which it gets the engine of this process."""
    paths: list[Path] = []
    engine = loader.load()
    monkeypatch.setattr(loader, "_import", lambda library: paths.append(library) or engine)
    return paths


def load() -> object:
    """As in a fresh process."""
    return loader.load.__wrapped__()


def key(cuda: bool = False) -> str:
    return loader._folder_name(cuda=cuda)


def test_the_engine_of_this_torch_is_taken_and_nothing_is_built(packaged, imported, tmp_path):
    packaged("torch-9.9.9-0123456789abcdef")
    library = packaged(key(cuda=loader.cuda_headers() is not None))
    load()
    assert imported == [library] == [loader.library_built_ahead()]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b[:99] + bytes(len(b) - 99)])
def test_an_engine_that_is_not_as_it_was_packed_is_never_loaded(packaged, imported, damage):
    library = packaged(key(cuda=loader.cuda_headers() is not None))
    library.write_bytes(damage(library.read_bytes()))
    with pytest.raises(EngineError, match="no C\\+\\+ compiler") as caught:
        load()
    assert f"the engine that came with memfit for torch {torch.__version__} is damaged" in caught.value.why
    assert not imported


def test_an_engine_without_its_sum_is_never_loaded(packaged, imported):
    packaged(key(cuda=loader.cuda_headers() is not None)).with_suffix(".sum").unlink()
    with pytest.raises(EngineError, match="no C\\+\\+ compiler"):
        load()
    assert not imported


@pytest.mark.parametrize("change", ["torch", "flags", "python", "sources"])
def test_an_engine_for_anything_else_is_not_taken(packaged, imported, monkeypatch, tmp_path, change):
    packaged(key(cuda=loader.cuda_headers() is not None))
    if change == "torch":
        monkeypatch.setattr(torch, "__version__", "9.9.9")
    elif change == "flags":
        monkeypatch.setenv("MEMFIT_SANITIZE", "address")
    elif change == "python":
        monkeypatch.setattr(loader.sysconfig, "get_config_var", lambda name: "cpython-399-x86_64-linux-gnu")
    else:
        shutil.copytree(loader._source_folder(), tmp_path / "native")
        (tmp_path / "native" / "engine" / "arena.h").write_text("// edited\n")
        monkeypatch.setattr(loader, "_source_folder", lambda: tmp_path / "native")
    assert loader.library_built_ahead() is None
    with pytest.raises(EngineError, match="no C\\+\\+ compiler"):
        load()
    assert not imported


def test_without_a_compiler_the_error_names_the_versions_that_there_are_engines_for(packaged):
    with pytest.raises(EngineError) as caught:
        load()
    assert caught.value.why.endswith(f"memfit came with no engine, and this is torch {torch.__version__}")
    for folder in ("torch-9.9.9+cpu-0123456789abcdef", "torch-9.9.10-0123456789abcdef"):
        packaged(folder)
    with pytest.raises(EngineError, match="there is no C\\+\\+ compiler") as caught:
        load()
    assert f"engines for torch 9.9.10, 9.9.9+cpu alone, and this is torch {torch.__version__}" in caught.value.why


def test_an_engine_that_does_not_load_is_compiled_here_with_one_line_about_it(packaged, monkeypatch, capsys):
    packaged(key(cuda=loader.cuda_headers() is not None))
    monkeypatch.setenv("CXX", "c++")
    monkeypatch.setattr(loader, "_compile", lambda folder: (folder / NAME).write_bytes(b"compiled"))
    with pytest.raises(EngineError, match="could not be loaded") as caught:
        load()
    assert str(loader.cached_library().parent) in caught.value.remedy and loader.cached_library().exists()
    lines = [line for line in capsys.readouterr().err.splitlines() if "does not load here" in line]
    assert len(lines) == 1 and NAME in lines[0]


def test_an_engine_with_cuda_is_preferred_and_needs_no_headers(packaged, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(loader, "cuda_headers", lambda: None)
    plain = packaged(key(cuda=False))
    assert loader.library_built_ahead() == plain and not loader.has_cuda()
    both = packaged(key(cuda=True))
    assert loader.library_built_ahead() == both and loader.has_cuda()


def test_an_engine_without_cuda_does_not_take_the_place_of_one_that_can_be_built_with_it(
    packaged, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(loader, "cuda_headers", lambda: tmp_path)
    packaged(key(cuda=False))
    assert loader.library_built_ahead() is None and loader.has_cuda()


def test_a_torch_without_cuda_takes_no_engine_with_it(packaged, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    packaged(key(cuda=True))
    assert loader.library_built_ahead() is None and not loader.has_cuda()


def test_doctor_asks_for_a_compiler_only_where_there_is_no_engine(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not _compiler(is_needed=True).ok and "apt-get install g++" in _compiler(is_needed=True).text
    assert _compiler(is_needed=False).ok and "none is needed" in _compiler(is_needed=False).text
    monkeypatch.delenv("CXX")
    assert _compiler(is_needed=True) == _compiler(is_needed=False) and _compiler(is_needed=True).ok


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with memfit as from a wheel that has the engine for this torch."""
    folder = tmp_path / "site"
    shutil.copytree(Path(memfit.__file__).parent, folder / "memfit", ignore=shutil.ignore_patterns("_engines"))
    built = loader.build()
    engine = folder / "memfit" / "_engines" / built.parent.name
    engine.mkdir(parents=True)
    note_sum(Path(shutil.copy2(built, engine)))
    return folder


@pytest.mark.long
def test_a_machine_without_a_compiler_trains_from_a_wheel_and_doctor_says_whose_engine_it_has(installed, tmp_path):
    (tmp_path / "script.py").write_text(TRAINING)
    settings = {"PYTHONPATH": str(installed), "MEMFIT_CACHE": str(tmp_path / "cache"), "CXX": "no-such-compiler"}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "memfit", *words]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | settings, capture_output=True, text=True)
        assert done.returncode == 0 and "building" not in done.stderr, done.stdout + done.stderr
        return done.stdout

    assert "step 3" in run("run", "--budget", "100KB", "--tier", "ram", "script.py")
    lines = {line.split()[1]: line for line in run("doctor", "--tier", "ram").splitlines()}
    assert f"came with memfit: {installed / 'memfit' / '_engines'}" in lines["engine"]
    assert "none is needed" in lines["compiler"]
    assert not list((tmp_path / "cache").glob("torch-*"))
