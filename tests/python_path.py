"""Where another process of a test imports from: the folder of tests, with helpers, and the root, with benchmarks.

Both at once: in the folder of tests there is one of the benchmarks' own, which would be imported in their place.
"""

from __future__ import annotations

import os
from pathlib import Path

_TESTS = Path(__file__).parent


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment with `variables`, and with helpers and benchmarks to import."""
    path = [str(_TESTS), str(_TESTS.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)} | variables
