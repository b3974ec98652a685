"""The columns of numbers that Python and C++ share, by name."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
Float64Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

INT64_MAX = 2**63 - 1
"""The largest number that fits a column."""
