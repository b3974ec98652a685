"""Engines that came with the package, built ahead by tools/make_wheels.py: a folder each, named as in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from memfit.running.engine.cache import is_whole

FOLDER = Path(__file__).parents[2] / "_engines"


def find(folders: Iterable[str], library: str) -> Path | None:
    """Return the file `library` in the first of `folders` that has it as it was built; None if none has.

    Arguments:
        folders: Names of folders, each with the key of an engine that would do; the best one first.
        library: The name of the engine's file.
    """
    libraries = (FOLDER / folder / library for folder in folders)
    return next((path for path in libraries if is_whole(path)), None)


def torch_versions() -> list[str]:
    """Return the versions of torch, each as `torch.__version__` has it, that engines came with the package for."""
    return sorted({path.parent.name.removeprefix("torch-").rpartition("-")[0] for path in FOLDER.glob("torch-*/*.so")})
