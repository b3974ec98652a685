"""A recording kept small: column by column as differences, in the narrowest integers that hold them, compressed."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from memfit.ir import Trace
from memfit.tracing.build import RawRecording, Roles, Rows, build_trace
from memfit.tracing.demand import largest_demand
from memfit.tracing.ghosts import timed
from memfit.tracing.roofline import Accelerator

_LEVEL = 1  # of zlib: the others take several times as long for a tenth less
_WIDTHS = (np.int8, np.int16, np.int32, np.int64)
_TABLES = ("ops", "accesses", "ticks", "before", "handovers", "stored", "pins")

Value = TypeVar("Value")


class Compressed(Generic[Value]):
    """Any plain data, pickled and compressed."""

    def __init__(self, value: Value) -> None:
        self._bytes = zlib.compress(pickle.dumps(value), _LEVEL)

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        return len(self._bytes)

    def value(self) -> Value:
        """Return an equal one."""
        value: Value = pickle.loads(zlib.decompress(self._bytes))
        return value


@dataclass(frozen=True)
class CompressedRecording:
    """A RawRecording. A column of a recording changes little from row to row, or in one way only."""

    compressed: Compressed[dict[str, Any]]

    @classmethod
    def of(cls, raw: RawRecording) -> CompressedRecording:
        """Compress `raw`."""
        tables = {name: _narrow(getattr(raw, name)) for name in _TABLES}
        rest = {name: getattr(raw, name) for name in ("op_names", "sources", "ghosts", "shapes", "phases", "modules")}
        return cls(Compressed(tables | rest))

    @property
    def size_bytes(self) -> int:
        """Its size in memory."""
        return self.compressed.size_bytes

    def recording(self) -> RawRecording:
        """Return an equal recording."""
        columns = self.compressed.value()
        return RawRecording(**columns | {name: _wide(columns[name]) for name in _TABLES})


@dataclass(frozen=True)
class CompressedIteration:
    """One whole iteration, of which a Trace can be made; `about` and `roles` as of `build_trace`."""

    compressed: CompressedRecording
    roles: Roles
    about: Mapping[str, Any]
    accelerator: Accelerator | None = None  # that it is timed as

    @classmethod
    def of(
        cls, raw: RawRecording, first: int, last: int, roles: Roles, accelerator: Accelerator | None, **about: Any
    ) -> CompressedIteration:
        """Compress the iteration that ops [first, last) of the recording make up."""
        about["before"] = largest_demand(raw, first, about["alignment"])  # of ops that are not kept
        return cls(CompressedRecording.of(raw.cut(first, last, raw.ticks_of(first, last))), roles, about, accelerator)

    def trace(self) -> Trace:
        """Return it as a trace, made anew each time."""
        raw = self.compressed.recording()
        trace = build_trace(raw, 0, len(raw.ops), self.roles, **self.about)
        return trace if self.accelerator is None else timed(trace, raw.shapes, self.accelerator)


def _narrow(rows: Rows) -> dict[str, NDArray[Any]]:
    return {name: _narrowest(np.diff(rows[name], prepend=0)) for name in rows.dtype.names or ()}


def _narrowest(values: NDArray[np.int64]) -> NDArray[Any]:
    least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return values.astype(next(w for w in _WIDTHS if np.iinfo(w).min <= least and most <= np.iinfo(w).max))


def _wide(columns: Mapping[str, NDArray[Any]]) -> Rows:
    length = len(next(iter(columns.values())))
    rows = np.empty(length, np.dtype([(name, np.int64) for name in columns]))
    for name, differences in columns.items():
        rows[name] = np.cumsum(differences, dtype=np.int64)
    return rows
