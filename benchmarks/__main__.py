"""Runs benchmarks by name: `python -m benchmarks NAME [NAME ...] [options]`; `--list` says what there is.

Options are the benchmark's own (`python -m benchmarks NAME --help`); given several names, each gets all of them.
Benchmarks are found by their files, without importing any: `--list` takes no time.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from pathlib import Path

from benchmarks.common.options import called, parser_of
from benchmarks.common.paths import RESULTS, ROOT

# Of a folder each public module is a benchmark, named by its file; the paper's names say whose figures they are.
_FOLDERS = {"cpu": "", "offline": "", "paper": "paper_"}
_GPU = {"gpu_first": "first", "gpu": "runner", "gpu_probe": "probe", "gpu_estimate": "estimate",
        "simulated_gpu": "simulated", "simulated_kinds": "simulated_kinds", "gpu_calibration": "calibration",
        "gpu_rehearsal": "rehearsal"}  # fmt: skip


def benchmarks() -> dict[str, str]:
    """Return the name of each benchmark's module."""
    found = {
        prefix + path.stem: f"benchmarks.{folder}.{path.stem}"
        for folder, prefix in _FOLDERS.items()
        for path in sorted((ROOT / "benchmarks" / folder).glob("[!_]*.py"))
    }
    return found | {name: f"benchmarks.gpu.{module}" for name, module in _GPU.items()}


def about(module: str) -> str:
    """Return the first line of a module's docstring."""
    path = ROOT / (module.replace(".", "/") + ".py")
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def main(argv: Sequence[str]) -> int:
    """Run the benchmarks that `argv` names, up to the first that fails; return an exit code."""
    known = benchmarks()
    names = list(takewhile(known.__contains__, argv))
    if not names:
        return _without_names(argv)
    codes = (_run(name, known[name], argv[len(names) :]) for name in names)
    return next((code for code in codes if code != 0), 0)


def _without_names(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="what to run")
    parser.add_argument("--list", action="store_true", help="say what each benchmark measures, and end")
    args = parser.parse_args(argv)
    if not args.list:
        unknown = f"there is no benchmark {args.names[0]}; " if args.names else ""
        parser.error(f"{unknown}--list says what there is")
    for name, module in benchmarks().items():
        print(f"{name:16} {about(module)}")
    return 0


def _run(name: str, module_name: str, texts: Sequence[str]) -> int:
    module = import_module(module_name)
    parser, code = parser_of(module.run, f"python -m benchmarks {name}", module.__doc__), 0
    parser.add_argument("--out", type=Path, help="folder for the JSON (benchmarks/results)")
    args = parser.parse_args(texts)
    for result in called(module.run, args):
        result.report(args.out or RESULTS)
        code = code or result.exit_code
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
