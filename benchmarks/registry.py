"""The benchmarks by name. They are found by their files, without importing any: `--list` takes no time."""

from __future__ import annotations

import ast

from benchmarks.common.paths import ROOT

# Of a folder each public module is a benchmark, named by its file; the paper's names say whose figures they are.
_FOLDERS = {"cpu": "", "offline": "", "paper": "paper_"}
_GPU = {"gpu": "runner", "gpu_probe": "probe", "gpu_estimate": "estimate"}


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
