"""Tests on a real GPU: `pytest -m gpu`. Without one they are skipped."""

from __future__ import annotations

import gc
import os

import pytest
import torch

# Read when cuBLAS is first used: 128 KiB, which repeats itself as well as the usual 32 MiB, and leaves budgets small.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")


@pytest.fixture(autouse=True)
def on_gpu():
    """Everything a test makes is on the GPU, and torch's algorithms repeat themselves."""
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA GPU")
    torch.use_deterministic_algorithms(True, warn_only=True)
    gc.collect()
    gc.freeze()  # a session looks at every object the collector tracks
    with torch.device("cuda"):
        yield
    gc.unfreeze()
    torch.use_deterministic_algorithms(False)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
