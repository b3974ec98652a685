"""The CUDA part of the engine compiles against the installed torch's headers, also where torch itself has no CUDA."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from memfit.running import engine

pytestmark = pytest.mark.timeout(300)

SOURCE = Path(__file__).parents[2] / "native"
# What torch generates when it is built with CUDA, and its other headers ask for.
GENERATED = {"c10/cuda/impl/cuda_cmake_macros.h": "#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n"}


def cuda_headers() -> Path:
    packages = Path(torch.__file__).parents[1] / "nvidia"
    found = sorted(packages.glob("cu1*/include/cuda_runtime_api.h"))
    if not found or not (found[-1].parent / "crt" / "host_defines.h").is_file():
        pytest.skip("the CUDA headers are not there: pip install nvidia-cuda-runtime nvidia-cuda-crt")
    return found[-1].parent


@pytest.mark.long
def test_it_compiles(tmp_path):
    for name, text in GENERATED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    includes = Path(torch.__file__).parent / "include"
    folders = [includes, includes / "torch/csrc/api/include", cuda_headers(), Path(sysconfig.get_path("include"))]
    # torch's own copy of the generated header, where it has one, comes first.
    command = [
        *(engine.compiler() or ["c++"]),
        "-fsyntax-only",
        "-std=c++20",
        "-DNDEBUG",
        "-DMEMFIT_CUDA",
        f"-I{SOURCE}",
    ]
    command += [f"-isystem{folder}" for folder in (*folders, tmp_path)]
    done = subprocess.run([*command, str(SOURCE / "engine/cuda/cuda_unity.cc")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_headers_are_looked_for_where_torch_has_cuda_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert engine.cuda_headers() is None
    for name in ("cuda.h", "cuda_runtime_api.h", "crt/host_defines.h"):
        (tmp_path / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "include" / name).touch()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert engine.cuda_headers() == tmp_path / "include"
    (tmp_path / "include" / "crt" / "host_defines.h").unlink()
    assert engine.cuda_headers() != tmp_path / "include"
