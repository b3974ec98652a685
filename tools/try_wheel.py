"""Installs a wheel in a bare Debian, trains an example below its peak there, and says how long each step took.

Usage: python -m tools.try_wheel [--compiler] WHEEL [REQUIREMENT ...]

Without --compiler there is none in it, and no headers. It has the network and pip's settings of this machine, and needs
mmdebstrap and bwrap (apt-get install mmdebstrap bubblewrap).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("mmdebstrap", "bwrap")
_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_COMPILER = ("g++", "python3-dev")
_COMPILERS = ("c++", "g++", "gcc", "cc", "clang++")
_SESSION = "import torch, memfit\nwith memfit.session('64MiB', 'ram', device='cpu'):\n    torch.ones(8).sum()"
_EXAMPLE = ("/examples/vgg.py", "--width", "8", "--batch", "64")


@dataclass(frozen=True)
class Container:
    """A folder with a system in it, in which commands run as its root."""

    folder: Path
    options: tuple[str, ...]

    def run(self, *command: str) -> str:
        """Run `command` in the container, print what it says, and return its standard output."""
        system = (
            "--bind",
            str(self.folder),
            "/",
            "--dev",
            "/dev",
            "--proc",
            "/proc",
            "--clearenv",
            "--die-with-parent",
        )
        done = subprocess.run(["bwrap", *system, *self.options, *command], stdout=subprocess.PIPE, text=True)
        print(done.stdout, end="", flush=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
        return done.stdout

    def timed(self, step: str, *command: str) -> float:
        """Run `command` and print the seconds that it took as those of `step`; return them."""
        began, used = time.monotonic(), _cpu_seconds()
        self.run(*command)
        seconds = time.monotonic() - began
        print(f"try_wheel: {step}: {seconds:.1f} s, {_cpu_seconds() - used:.1f} s of CPU time", flush=True)
        return seconds


def _cpu_seconds() -> float:
    """Return the CPU time of the children that have ended: a busy machine does not make it much longer."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def main() -> None:
    """Try the wheel that the command line names."""
    options = _parsed()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        packages = [*_PACKAGES, *(_COMPILER if options.compiler else ())]
        system = Path(folder) / "system"
        _make(system, options.suite, packages)
        wheel = f"/wheels/{options.wheel.name}"
        shared = ("--ro-bind", str(options.wheel.resolve()), wheel, "--ro-bind", str(ROOT / "examples"), "/examples")
        container = Container(system, (*shared, *_settings_of_pip()))
        _check_compilers(container, options.compiler)
        try_wheel(container, [wheel, *options.requirements])


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.try_wheel", description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("requirements", nargs="*", metavar="REQUIREMENT", help="for pip: torch==2.13.0")
    parser.add_argument("--compiler", action="store_true", help="with a C++ compiler in it")
    parser.add_argument("--suite", default="bookworm", help="the Debian, whose Python must be the wheel's")
    options = parser.parse_args()
    if not options.wheel.is_file():
        parser.error(f"there is no wheel {options.wheel}")
    return options


def _make(system: Path, suite: str, packages: list[str]) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", suite, str(system)]
    subprocess.run(command, check=True)


def _settings_of_pip() -> tuple[str, ...]:
    """Return options of bwrap: what pip is set to here, and the files and folders that it names."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    pairs = [line.partition("=") for line in lines]
    settings = {name.rpartition(".")[2]: value.strip("'") for name, _, value in pairs}
    words = {word.removeprefix("file://") for value in settings.values() for word in value.split()}
    options = [
        "--setenv",
        "PATH",
        "/venv/bin:/usr/bin:/bin",
        "--setenv",
        "HOME",
        "/root",
        "--setenv",
        "TMPDIR",
        "/var/tmp",
    ]
    for name, value in settings.items():
        options += ["--setenv", f"PIP_{name.upper().replace('-', '_')}", value]
    named = {Path(word) for word in words if word.startswith("/")} | {Path("/etc/resolv.conf")}
    # The pages of an index in a folder may refer to files beside that folder.
    for path in sorted({path.parent if path.is_dir() else path for path in named if path.exists()}):
        options += ["--ro-bind", str(path), str(path)]
    return tuple(options)


def _check_compilers(container: Container, wanted: bool) -> None:
    found = container.run("sh", "-c", f"command -v {' '.join(_COMPILERS)} || true").split()
    if bool(found) != wanted:
        raise SystemExit(f"the container has these compilers: {found}")


def try_wheel(container: Container, requirements: list[str]) -> None:
    """Install `requirements`, of which one is the wheel, and use it for the first time."""
    container.run("python3", "-m", "venv", "/venv")
    spent = container.timed("pip install", "pip", "install", "--quiet", *requirements, "scikit-learn")
    spent += container.timed("import torch", "python", "-c", "import torch")
    spent += container.timed("first session", "python", "-c", _SESSION)
    spent += container.timed("a model trained below its peak", "memfit", "run", "--budget", "80%", *_EXAMPLE)
    print(f"try_wheel: from pip install to that model: {spent / 60:.1f} min")
    container.timed("second session", "python", "-c", _SESSION)
    container.run("sh", "-c", "memfit doctor || true")


if __name__ == "__main__":
    main()
