"""The native engine: one that came with the package, otherwise compiled on first use and cached.

It must match the torch it runs in. A package has its sources, and perhaps engines for some versions (prebuilt.py).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import sysconfig
import time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import cast

import torch

from memfit.errors import BudgetError, EngineError, TierError
from memfit.messages import say
from memfit.progress import working
from memfit.running.engine import prebuilt
from memfit.running.engine.cache import cache_folder as cache_folder
from memfit.running.engine.cache import obtain
from memfit.running.engine.compiling import FLAGS, NAME, CompilationError, compile_engine, units
from memfit.running.engine.module import EngineModule as EngineModule

_BUILD_SECONDS = "build-seconds"  # in the cache's folder
_USUAL_SECONDS = 60.0
# Libraries that try a smaller batch know an error of memory by these words in its only argument (accelerate's
# find_executable_batch_size, the Trainer's auto_find_batch_size, Lightning's finder). People do not see them.
_OUT_OF_MEMORY = "\n(as libraries know it: CUDA out of memory. DefaultCPUAllocator: can't allocate memory)"
NO_CUDA_HEADERS = (
    "the CUDA headers are not there, and the engine is built without them for the CPU alone: install the CUDA toolkit, "
    "or the package nvidia-cuda-crt beside torch's own nvidia-cuda-runtime, or name their folder in CUDA_HOME"
)
# For tests of the engine itself; the sanitizer's library must be loaded before Python: see `make asan`.
_SANITIZERS = {"address": "address,undefined", "thread": "thread"}


@cache
def load() -> EngineModule:
    """Return the engine: the one that came with the package for this torch, otherwise the cache's, built if need be.

    Raises EngineError when it has to be built and there is no compiler, or the build fails.
    """
    engine = _import_built_ahead() or _import(build())
    engine.set_error_types(_budget_error(engine), TierError)
    engine.set_library_folders(_library_folders())
    engine.on_notice(say)
    engine.set_stress(os.environ.get("MEMFIT_STRESS", ""))  # for tests: see CONTRIBUTING.md
    return engine


def build() -> Path:
    """Return the path of the cache's engine for this torch, built first if it is not there. Raises EngineError."""
    library = cached_library()
    obtain(library, _build)
    return library


def library_built_ahead() -> Path | None:
    """Return the path of the engine that came with the package for this torch, Python and source; None without one.

    One that was built with the CUDA headers needs none here, so that it is preferred to one without.
    """
    if not prebuilt.FOLDER.is_dir():  # as in most packages: no sources are hashed for it
        return None
    with_cuda = [True] if torch.version.cuda is not None else []
    wanted = dict.fromkeys([*with_cuda, cuda_headers() is not None])
    return prebuilt.find(map(_folder_name, wanted), f"{NAME}.so")


def library_in_use() -> Path:
    """Return the path of the engine, which is loaded if it is not yet. Raises EngineError, as `load` does."""
    return Path(cast(ModuleType, load()).__file__ or "")


def has_cuda() -> bool:
    """Return whether the engine for this torch is, or would be, built with the CUDA headers."""
    ahead = library_built_ahead()
    return cuda_headers() is not None if ahead is None else ahead.parent.name == _folder_name(cuda=True)


def _import_built_ahead() -> EngineModule | None:
    library = library_built_ahead()
    if library is None:
        return None
    try:
        return _import(library)
    except EngineError as error:  # built where libraries are newer than here
        say(f"memfit: the engine that came with memfit does not load here ({error.why}); one that is compiled here may")
        return None


def _budget_error(engine: EngineModule) -> type[BudgetError]:
    """Return the BudgetError that native code raises with a finished message; the engine gives its other fields."""

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
            self.args = (self.what + _OUT_OF_MEMORY,)

        def __str__(self) -> str:
            return str(self.args[0]).removesuffix(_OUT_OF_MEMORY)

        def __reduce__(self) -> tuple[object, ...]:  # another process may know nothing of this class
            return BudgetError, (str(self),), self.__dict__

    _BudgetError.__name__ = _BudgetError.__qualname__ = BudgetError.__name__
    _BudgetError.__module__ = BudgetError.__module__
    return _BudgetError


def cached_library() -> Path:
    """Return the path of the cache's engine for this torch, Python and source, whether or not it is built."""
    return cache_folder() / _folder_name(cuda=cuda_headers() is not None) / f"{NAME}.so"


def _folder_name(cuda: bool) -> str:
    """Return the name of the folder of an engine, which has the key of all that it was built from and for."""
    key = hashlib.sha256()
    flags = FLAGS + _sanitizer_flags()
    key.update(f"{torch.__version__}|{sysconfig.get_config_var('SOABI')}|{flags}|{cuda}".encode())
    key.update(repr(units(_source_folder(), cuda)).encode())
    for path in sorted(_source_folder().rglob("*")):
        if path.suffix in {".h", ".c", ".cpp", ".cc"}:
            key.update(path.name.encode() + path.read_bytes())
    return f"torch-{torch.__version__}-{key.hexdigest()[:16]}"


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


def compiler() -> list[str]:
    """Return the command of the C++ compiler that would be used, as $CXX has it; empty if it is not there."""
    try:
        words = shlex.split(_compiler_command())
    except ValueError:  # a quotation mark without its other
        return []
    path = shutil.which(words[0]) if words else None
    return [path, *words[1:]] if path else []


def _compiler_command() -> str:
    return os.environ.get("CXX", "").strip() or "c++"


def _sanitizer_flags() -> tuple[str, ...]:
    """Return the flags that MEMFIT_SANITIZE adds for compiler and linker; none if it is not set."""
    kind = os.environ.get("MEMFIT_SANITIZE", "")
    if not kind:
        return ()
    if kind not in _SANITIZERS:
        known = " or ".join(_SANITIZERS)
        raise EngineError(
            f"the engine has no sanitizer '{kind}'", remedy=f"set MEMFIT_SANITIZE to {known}, or unset it"
        )
    return (f"-fsanitize={_SANITIZERS[kind]}", "-fno-sanitize=vptr", "-fno-omit-frame-pointer", "-g1", "-O1")


def _source_folder() -> Path:
    """Return the folder with engine/ and common/: inside the package, or the checkout's native/."""
    packaged = Path(__file__).parents[2] / "_engine"
    checkout = Path(__file__).parents[4] / "native"
    for folder in (packaged, checkout):
        if (folder / "engine").is_dir():
            return folder
    raise EngineError(
        "the sources of the native engine are missing",
        why=f"neither {packaged} nor {checkout} has them",
        remedy="install memfit again: pip install --force-reinstall memfit",
    )


def _build(folder: Path) -> None:
    if not compiler():
        raise EngineError(
            "the native engine cannot be built: there is no C++ compiler",
            why=f"'{_compiler_command()}' is not on the PATH, and {_no_engine_came()}",
            remedy="install one (Debian and Ubuntu: apt-get install g++; conda: conda install gxx) or set CXX",
        )
    say(f"memfit: building the engine for torch {torch.__version__} (once, about {_build_seconds():.0f} s) ...")
    started = time.monotonic()
    with working("building the engine", _build_seconds()):
        _compile(folder)
    took = time.monotonic() - started
    say(f"memfit: the engine is built ({took:.0f} s)")
    with contextlib.suppress(OSError):
        (cache_folder() / _BUILD_SECONDS).write_text(f"{took:.0f}\n")


def _build_seconds() -> float:
    """Return how long the last build on this machine took, or about how long one takes."""
    try:
        return float((cache_folder() / _BUILD_SECONDS).read_text())
    except (OSError, ValueError):
        return _USUAL_SECONDS


def _no_engine_came() -> str:
    """Say why no engine that came with the package is of use, as the rest of a sentence."""
    versions = prebuilt.torch_versions()
    if torch.__version__ in versions:
        return f"the engine that came with memfit for torch {torch.__version__} is damaged or does not fit here"
    came = f"engines for torch {', '.join(versions)} alone" if versions else "no engine"
    return f"memfit came with {came}, and this is torch {torch.__version__}"


def _compile(folder: Path) -> None:
    try:
        compile_engine(
            _source_folder(),
            folder,
            compiler(),
            cuda_headers(),
            sanitizers=_sanitizer_flags(),
            expected=_build_seconds(),
        )
    except (CompilationError, OSError) as error:
        raise EngineError(
            "the native engine could not be built",
            why=str(error),
            remedy=f"check that {shlex.join(compiler())} is g++ >= 10 or clang >= 12: memfit doctor",
        ) from error


def _import(library: Path) -> EngineModule:
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise EngineError(
            "the native engine could not be loaded",
            why=str(error),
            remedy=f"remove {library.parent} and try again; memfit then builds it anew",
        ) from error
    return cast(EngineModule, module)


def _library_folders() -> list[str]:
    """Folders below which a frame is not the user's code."""
    torch_folder = Path(torch.__file__).parent
    wrappers = [contextlib.__file__, functools.__file__]  # between the user's line and memfit's own
    return [str(torch_folder) + os.sep, str(Path(__file__).parents[2]) + os.sep, *wrappers]
