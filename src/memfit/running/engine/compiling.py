"""How the native engine is compiled: balanced translation units, as many at once as there are cores.

torch's headers take seconds in every translation unit, so that there are few. Two compilers that take the longest first
have about as much to do.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch

from memfit.progress import under_way

NAME = "memfit_engine"
# NDEBUG: otherwise an assertion guards RecordFunction's inputs. Nobody puts functions of their own before the engine's.
# AT_PER_OPERATOR_HEADERS: otherwise torch's headers declare all of its thousands of operators.
FLAGS = ("-std=c++20", "-fPIC", "-DNDEBUG", "-DAT_PER_OPERATOR_HEADERS", "-fno-semantic-interposition")
# The optimization of what runs with each op, and of the rest. By default GCC stops inlining when a unit has grown by
# 40 %, before it comes to small functions of the allocator: 300 instructions an op.
_FAST = ("-O2", "--param=inline-unit-growth=80")
_SMALL = ("-O1",)
# What is compiled beside the bindings: what includes the headers of Python or autograd, as they do, and what does not
# run with each op (the tier, how a plan is read and put in force, what errors say), so that both units take as long.
_BESIDE_BINDINGS = frozenset((
    "adoption", "backward", "capturing", "collectives", "compaction", "discarding", "exchange", "fork", "growth",
    "host", "making", "measure", "media", "plan", "plan_columns", "redirect", "remakings", "session", "source",
    "split_rules", "split_trials", "store", "telling", "tier", "trying", "undisturbed", "witness",
))  # fmt: skip
# About how long compiling takes, as bytes of the engine's own source: torch's headers, and Python's beside them.
_TORCH, _PYTHON = 60_000, 145_000


@dataclass(frozen=True)
class Unit:
    """One translation unit.

    `sources` are the files that it includes, below the sources' folder; `weight` is about how long it takes to compile,
    as bytes of source. `optimize` holds the flags of its optimization.
    """

    name: str
    sources: tuple[str, ...]
    weight: int
    optimize: tuple[str, ...]


class CompilationError(RuntimeError):
    """The compiler failed, or could not be started."""


def units(source: Path, cuda: bool) -> list[Unit]:
    """Return the units that the sources below `source` are compiled in, those that take longest first."""
    engine = set((source / "engine").glob("*.cpp"))
    bindings, paging = ({*(source / f"engine/{folder}").glob("*.cpp")} for folder in ("bindings", "paging"))
    beside = bindings | {path for path in engine if path.stem in _BESIDE_BINDINGS}
    found = [
        _unit("ops", source, (engine | paging) - beside, _TORCH, _FAST),
        _unit("bindings", source, beside, _PYTHON, _SMALL),
        Unit("compression", ("engine/compression/compression_unity.cc",), _TORCH // 3, _FAST),
    ]
    if cuda:
        found.append(Unit("cuda", ("engine/cuda/cuda_unity.cc",), 2 * _TORCH, _FAST))
    return sorted(found, key=lambda unit: -unit.weight)


def _unit(name: str, source: Path, paths: set[Path], headers: int, optimize: tuple[str, ...]) -> Unit:
    weight = headers + sum(path.stat().st_size for path in paths)
    return Unit(name, tuple(sorted(str(path.relative_to(source)) for path in paths)), weight, optimize)


def compile_engine(
    source: Path, folder: Path, compiler: Sequence[str], cuda_headers: Path | None, sanitizers: Sequence[str] = (),
    expected: float = 0.0,
) -> None:  # fmt: skip
    """Compile the engine into `folder`.

    Arguments:
        source: The folder with engine/ and common/.
        folder: Where the library and its objects are written.
        compiler: The C++ compiler's command.
        cuda_headers: The folder of CUDA's headers; None to build for the CPU alone.
        sanitizers: The flags of a sanitizer; the first of them is for the linker, too.
        expected: The seconds of the work under way that this is, for the line that shows it.

    Raises:
        CompilationError: with what the compiler said.
    """
    needed = units(source, cuda_headers is not None)
    flags = [*FLAGS, *_includes(source, cuda_headers)]
    seconds = expected / sum(unit.weight for unit in needed)
    with _Compilers() as compilers:
        compilers.run([
            ([*compiler, *unit.optimize, *flags, *sanitizers, "-c", *_written(unit, folder)], seconds * unit.weight)
            for unit in needed
        ])  # fmt: skip
        objects = [str(folder / f"{unit.name}.o") for unit in needed]
        link = [*compiler, "-shared", *objects, *sanitizers[:1], *_libraries(cuda_headers is not None)]
        compilers.run([([*link, "-o", str(folder / f"{NAME}.so")], 0.0)])


def _written(unit: Unit, folder: Path) -> list[str]:
    """Write the unit's own file, and return the arguments that compile it."""
    file = folder / f"{unit.name}.cc"
    file.write_text("".join(f'#include "{path}"\n' for path in unit.sources))
    return [str(file), "-o", str(folder / f"{unit.name}.o")]


def _includes(source: Path, cuda_headers: Path | None) -> list[str]:
    from torch.utils.cpp_extension import include_paths

    system = [*include_paths("cpu"), sysconfig.get_path("include")]
    cuda = [] if cuda_headers is None else ["-DMEMFIT_CUDA", f"-I{cuda_headers}"]
    return [
        f"-DTORCH_EXTENSION_NAME={NAME}", "-DTORCH_API_INCLUDE_EXTENSION_H", f"-I{source}", *cuda,
        *(word for path in system for word in ("-isystem", path)),
    ]  # fmt: skip


def _libraries(cuda: bool) -> list[str]:
    """Return what the engine is linked with. The CUDA runtime itself is the one that torch has loaded."""
    names = ["c10", "torch_cpu", "torch", "torch_python", *(["c10_cuda"] if cuda else [])]
    return [f"-L{Path(torch.__file__).parent / 'lib'}", *(f"-l{name}" for name in names), *loaded_runtime()]


def loaded_runtime() -> list[str]:
    """Return the path of the C++ runtime that torch has loaded, to be linked against by that very name.

    A compiler may link its own copy into the engine, with locales that are not those of the one in the process: the
    first use of a stream would crash.
    """
    mapped = (line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines())
    return next(([path] for path in mapped if Path(path).name.startswith("libstdc++.so.6")), [])


class _Compilers:
    """Compilers that run beside each other; none is left when this is closed."""

    def __init__(self) -> None:
        self._at_once = _jobs()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False
        self._pool = ThreadPoolExecutor(self._at_once, "memfit compiler")

    def __enter__(self) -> _Compilers:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        for process in list(self._running):
            process.kill()
        self._pool.shutdown(cancel_futures=True)

    def run(self, commands: Sequence[tuple[list[str], float]]) -> None:
        """Run the commands, each with the seconds that it is expected to take, in this order.

        Raises CompilationError when one of them fails.
        """
        work = under_way()
        futures = {self._pool.submit(self._run, command): seconds for command, seconds in commands}
        waiting = iter(futures.values())
        work.begin(sum(islice(waiting, self._at_once)))
        for future in as_completed(futures):
            future.result()
            work.spend(futures[future])
            work.begin(next(waiting, 0.0))

    def _run(self, command: list[str]) -> None:
        # A sanitizer's library is loaded first for Python's sake, and would slow the compiler down.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        try:
            process = subprocess.Popen(
                command, env=environment, text=True, errors="replace", stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        except OSError as error:
            raise CompilationError(f"{command[0]}: {error.strerror}") from error
        self._running.add(process)
        if self._is_over:
            process.kill()
        said, _ = process.communicate()
        self._running.discard(process)
        if process.returncode != 0:
            raise CompilationError(f"{shlex.join(command)}\nended with status {process.returncode}:\n{said}")


def _jobs() -> int:
    """Return how many compilers run at once: MAX_JOBS, as for torch's extensions, otherwise one for each core."""
    with contextlib.suppress(ValueError):
        return max(int(os.environ["MAX_JOBS"]), 1) if "MAX_JOBS" in os.environ else len(os.sched_getaffinity(0))
    return 1
