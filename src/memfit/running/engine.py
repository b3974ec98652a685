"""The native engine: compiled against the installed torch on first use, then cached.

It is not part of the wheel, since it must match the torch it runs in; its sources are.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

from memfit.errors import BudgetError, EngineError, TierError

_NAME = "memfit_engine"
_UNITS = ("unity.cc", "bindings.cpp")
_CUDA_UNITS = ("cuda/cuda_unity.cc",)
NO_CUDA_HEADERS = (
    "the CUDA headers are not there, and the engine is built without them for the CPU alone: install the CUDA toolkit, "
    "or the package nvidia-cuda-crt beside torch's own nvidia-cuda-runtime, or name their folder in CUDA_HOME"
)
_FLAGS = ("-O2", "-DNDEBUG", "-std=c++20")  # NDEBUG: RecordFunction's inputs are guarded by an assertion else
# For tests of the engine itself; the sanitizer's library must be loaded before Python: see `make asan`.
_SANITIZERS = {"address": "address,undefined", "thread": "thread"}


@cache
def load() -> ModuleType:
    """Return the engine, building it first if this torch has none yet.

    Raises EngineError when there is no compiler or the build fails.
    """
    engine = _import(build())
    engine.set_error_types(_budget_error(engine), TierError)
    engine.set_library_folders(_library_folders())
    engine.set_stress(os.environ.get("MEMFIT_STRESS", ""))  # for tests: see CONTRIBUTING.md
    return engine


def build() -> Path:
    """Build the engine if there is none yet for this torch; return where it lies. Raises EngineError."""
    library = cached_library()
    if not library.exists():
        with _locked(library.parent):
            if not library.exists():
                _build(library)
    return library


def _budget_error(engine: ModuleType) -> type[BudgetError]:
    """Return the BudgetError that native code raises with a finished message; the rest it asks the engine for."""

    class _BudgetError(BudgetError, torch.OutOfMemoryError):  # scripts that know what to do on a GPU catch that
        def __init__(self, message: str) -> None:
            failure = engine.last_failure()
            super().__init__(
                message,
                required_bytes=failure["required_bytes"],
                op=failure["op"],
                source=failure["source"],
                tensors=failure["tensors"].split("; ") if failure["tensors"] else (),
            )

    _BudgetError.__name__ = _BudgetError.__qualname__ = BudgetError.__name__
    _BudgetError.__module__ = BudgetError.__module__
    return _BudgetError


def cached_library() -> Path:
    """Return where the engine for this torch, Python and source lies, or will lie."""
    key = hashlib.sha256()
    cuda = cuda_headers() is not None
    key.update(f"{torch.__version__}|{sysconfig.get_config_var('SOABI')}|{_FLAGS + _sanitizer_flags()}|{cuda}".encode())
    for path in sorted(_source_folder().rglob("*")):
        if path.suffix in {".h", ".cpp", ".cc"}:
            key.update(path.name.encode() + path.read_bytes())
    return cache_folder() / f"torch-{torch.__version__}-{key.hexdigest()[:16]}" / f"{_NAME}.so"


def cuda_headers() -> Path | None:
    """Return the folder of the CUDA headers for this torch; None if it is built without CUDA, or they are not there.

    Looked for in CUDA_HOME, beside nvcc, in /usr/local/cuda and in the packages that torch depends on.
    """
    if torch.version.cuda is None:
        return None
    nvcc = shutil.which("nvcc")
    roots = [os.environ.get("CUDA_HOME"), nvcc and Path(nvcc).resolve().parents[1], "/usr/local/cuda"]
    packages = Path(torch.__file__).parents[1] / "nvidia"
    roots += [packages / f"cu{torch.version.cuda.split('.')[0]}", packages / "cuda_runtime"]
    needed = ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h")
    folders = [Path(root) / "include" for root in roots if root]
    return next((folder for folder in folders if all((folder / name).is_file() for name in needed)), None)


def compiler() -> str | None:
    """Return the path of the C++ compiler that would be used, or None."""
    return shutil.which(os.environ.get("CXX", "c++"))


def cache_folder() -> Path:
    """Return where what is built or measured on this machine is kept."""
    base = os.environ.get("MEMFIT_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "memfit"
    return Path(base).expanduser()


def _sanitizer_flags() -> tuple[str, ...]:
    """Return what MEMFIT_SANITIZE adds to the compiler's and the linker's flags; nothing if it is not set."""
    kind = os.environ.get("MEMFIT_SANITIZE", "")
    if not kind:
        return ()
    if kind not in _SANITIZERS:
        known = " or ".join(_SANITIZERS)
        raise EngineError(
            f"the engine has no sanitizer '{kind}'", remedy=f"set MEMFIT_SANITIZE to {known}, or not at all"
        )
    return (f"-fsanitize={_SANITIZERS[kind]}", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g1", "-O1")


def _source_folder() -> Path:
    """Return the folder with engine/ and common/: inside the package, or the checkout's native/."""
    packaged = Path(__file__).parents[1] / "_engine"
    checkout = Path(__file__).parents[3] / "native"
    for folder in (packaged, checkout):
        if (folder / "engine").is_dir():
            return folder
    raise EngineError(
        "the sources of the native engine are missing",
        why=f"neither {packaged} nor {checkout} has them",
        remedy="install memfit again: pip install --force-reinstall memfit",
    )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process build at a time; the lock goes with the process, so a killed build blocks nobody."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115 - closed below, once it is known to open
    except OSError as error:
        raise EngineError(
            f"the engine's cache folder {folder} cannot be written",
            why=error.strerror or str(error),
            remedy="name another folder in MEMFIT_CACHE",
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(library: Path) -> None:
    if compiler() is None:
        raise EngineError(
            "the native engine cannot be built: there is no C++ compiler",
            why=f"'{os.environ.get('CXX', 'c++')}' is not on the PATH",
            remedy="install one (Debian and Ubuntu: apt-get install g++; conda: conda install gxx) or set CXX",
        )
    announcement = f"memfit: building the engine for torch {torch.__version__} (once, about a minute) ..."
    print(announcement, end=" ", file=sys.stderr, flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        _compile(Path(folder))
        os.replace(Path(folder) / library.name, library)
    print(f"done in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


def _compile(folder: Path) -> None:
    from torch.utils import cpp_extension

    source, headers = _source_folder(), cuda_headers()
    sanitizers = list(_sanitizer_flags())
    units, flags, includes = list(_UNITS), [*_FLAGS, *sanitizers], [str(source)]
    links = sanitizers[:1]
    if headers is not None:
        units += _CUDA_UNITS
        flags.append("-DMEMFIT_CUDA")
        includes.append(str(headers))
        # The CUDA runtime itself is the one that torch has loaded.
        links += [f"-L{Path(torch.__file__).parent / 'lib'}", "-lc10_cuda"]
    with _ninja_on_path():
        try:
            cpp_extension.load(
                _NAME,
                [str(source / "engine" / name) for name in units],
                extra_cflags=flags,
                extra_ldflags=links,
                extra_include_paths=includes,
                build_directory=str(folder),
                is_python_module=False,
            )
        except (RuntimeError, OSError) as error:
            raise EngineError(
                "the native engine could not be built",
                why=str(error),
                remedy=f"check that {compiler()} is g++ >= 10 or clang >= 12: memfit doctor",
            ) from error


@contextmanager
def _ninja_on_path() -> Iterator[None]:
    """The ninja package puts its program beside the interpreter, which need not be on the PATH."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), before])
    try:
        yield
    finally:
        os.environ["PATH"] = before


def _import(library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_NAME, library)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise EngineError(
            "the native engine could not be loaded",
            why=str(error),
            remedy=f"remove {library.parent} and try again: it will be built anew",
        ) from error
    return module


def _library_folders() -> list[str]:
    """Frames below these are not the user's code."""
    torch_folder = Path(torch.__file__).parent
    wrappers = [contextlib.__file__, functools.__file__]  # between the user's line and memfit's own
    return [str(torch_folder) + os.sep, str(Path(__file__).parents[1]) + os.sep, *wrappers]
