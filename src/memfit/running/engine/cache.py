"""The folder that keeps built engines: its owner, the one process that builds, and the check that a file is whole."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memfit.errors import EngineError
from memfit.messages import say

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return the folder that keeps what is built or measured on this machine.

    Without a writable home it is a folder of the user's among the temporary ones.
    """
    if named := os.environ.get("MEMFIT_CACHE"):
        return _expanded(Path(named)) or Path(named).absolute()
    usual = _expanded(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "memfit")
    if usual is not None and (usual.is_dir() or os.access(_existing(usual), os.W_OK | os.X_OK)):
        return usual
    return Path(tempfile.gettempdir()) / f"memfit-{os.geteuid()}"


def obtain(library: Path, build: Callable[[Path], None]) -> None:
    """Put at `library` the file of that name that `build` leaves in a folder; raises EngineError if it cannot.

    One process builds at a time. A file that is not as it was built (cut short by a power cut or a full disk) is
    built anew, and nothing is taken from a folder that others can write to.
    """
    _check_owner(library.parent)
    if is_whole(library):
        return
    with _locked(library.parent):
        if not is_whole(library):
            _build(library, build)


def _build(library: Path, build: Callable[[Path], None]) -> None:
    for left_over in library.parent.glob("tmp*"):  # of builds that were killed: this process has the lock
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        build(Path(folder))
        built = Path(folder) / library.name
        for path in (built, note_sum(built)):
            _sync(path)
            os.replace(path, library.parent / path.name)
    _sync(library.parent)


def is_whole(library: Path) -> bool:
    """Return whether the library is there as it was built. A power cut leaves it cut short, or with zeros in it."""
    try:
        return library.with_suffix(".sum").read_text() == _summed(library)
    except (OSError, ValueError):
        return False


def note_sum(library: Path) -> Path:
    """Write the sum that `is_whole` looks for; return its path."""
    note = library.with_suffix(".sum")
    note.write_text(_summed(library))
    return note


def _summed(library: Path) -> str:
    data = library.read_bytes()
    return f"{len(data)} {hashlib.sha256(data).hexdigest()}\n"


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_owner(folder: Path) -> None:
    """Make the cache and the engine's folder in it; refuse them where other users could put an engine of their own."""
    cache = folder.parent
    try:
        for path in (cache.parent, cache, folder):
            path.mkdir(parents=True, exist_ok=True, mode=0o777 if path == cache.parent else 0o700)
    except OSError as error:
        raise _unwritable(folder, error) from error
    about = cache.stat()
    if about.st_uid == os.geteuid() and about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX:
        with contextlib.suppress(OSError):
            cache.chmod(stat.S_IMODE(about.st_mode) & ~_OTHERS_WRITE)  # a umask of 002 left it so
    for path in (cache, folder):
        about = path.stat()
        shared = path == cache and about.st_mode & stat.S_ISVTX  # as /tmp is: one's own folder in it is safe
        if not shared and (about.st_uid not in (0, os.geteuid()) or about.st_mode & _OTHERS_WRITE):
            raise EngineError(
                f"the engine's cache folder {path} is not safe to load an engine from",
                why="others can write to it" if about.st_mode & _OTHERS_WRITE else "it belongs to another user",
                remedy=f"chmod go-w {path}, or name a folder of your own in MEMFIT_CACHE",
            )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process build at a time; the lock goes with the process, so a killed build blocks nobody."""
    try:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        say("memfit: another process builds the engine; waiting for it ...")
    except OSError as error:
        raise _unlockable(folder, error) from error
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def _unlockable(folder: Path, error: OSError) -> EngineError:
    return EngineError(
        f"the engine's cache folder {folder} cannot be locked",
        why=f"{error.strerror}: some network file systems have no locks",
        remedy="name a folder on a local disk in MEMFIT_CACHE",
    )


def _unwritable(folder: Path, error: OSError) -> EngineError:
    return EngineError(
        f"the engine's cache folder {folder} cannot be written",
        why=error.strerror or str(error),
        remedy="name another folder in MEMFIT_CACHE",
    )


def _expanded(path: Path) -> Path | None:
    """Return `path` with the home it may begin with; None if nobody knows that home."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        return None


def _existing(path: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there."""
    return next((folder for folder in (path, *path.parents) if folder.exists()), path)
