"""A versioned JSON document on disk: header, atomic write, and readers that name the field that is wrong."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from memfit.arrays import INT64_MAX
from memfit.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object of a file, read field by field; every mismatch raises InputError naming the field."""

    path: Path
    prefix: str
    values: dict[str, Any]

    def fail(self, field: str, reason: str) -> NoReturn:
        """Raise InputError for `field` of this object."""
        raise InputError(
            f"{self.path}: field {self.prefix}{field} {reason}",
            remedy="the file is damaged or was edited by hand: record or plan it again",
        )

    def section(self, field: str) -> Fields:
        """Return the object in `field`."""
        value = self._get(field)
        if not isinstance(value, dict):
            self.fail(field, "is not an object")
        return Fields(self.path, f"{self.prefix}{field}.", value)

    def text(self, field: str) -> str:
        """Return the string in `field`."""
        value = self._get(field)
        if not isinstance(value, str):
            self.fail(field, "is not a string")
        return value

    def integer(self, field: str, low: int, high: int = INT64_MAX) -> int:
        """Return the integer in `field`, which must lie in [low, high]."""
        value = self._get(field)
        self._check_integer(field, value, low, high)
        return int(value)

    def integers(self, field: str, length: int | None, low: int, high: int = INT64_MAX) -> list[int]:
        """Return the list of integers in `field`, each in [low, high]; `length` None takes any length."""
        values = self._list(field, length)
        for index, value in enumerate(values):
            self._check_integer(f"{field}[{index}]", value, low, high)
        return values

    def durations(self, field: str, length: int) -> list[float]:
        """Return the list of durations (finite, not negative) in `field`."""
        values = self._list(field, length)
        for index, value in enumerate(values):
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                self.fail(f"{field}[{index}]", f"is not a duration: {value!r}")
        return [float(value) for value in values]

    def number(self, field: str, default: float | None = None) -> float:
        """Return the finite number in `field`; `default`, if there is one, for a file from before the field was."""
        value = self._get(field) if default is None or field in self.values else default
        self._check_number(field, value)
        return float(value)

    def numbers(self, field: str, length: int | None) -> list[float]:
        """Return the list of finite numbers in `field`; `length` None takes any length."""
        values = self._list(field, length)
        for index, value in enumerate(values):
            self._check_number(f"{field}[{index}]", value)
        return [float(value) for value in values]

    def texts(self, field: str) -> list[str]:
        """Return the list of strings in `field`."""
        values = self._list(field, None)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                self.fail(f"{field}[{index}]", "is not a string")
        return values

    def picks(self, field: str, length: int, table: Sequence[str]) -> list[str]:
        """Return the strings of `table` that the indices in `field` pick."""
        return [table[index] for index in self.integers(field, length, 0, len(table) - 1)]

    def _get(self, field: str) -> Any:
        if field not in self.values:
            self.fail(field, "is missing")
        return self.values[field]

    def _list(self, field: str, length: int | None) -> list[Any]:
        value = self._get(field)
        if not isinstance(value, list):
            self.fail(field, "is not a list")
        if length is not None and len(value) != length:
            self.fail(field, f"has {len(value)} entries instead of {length}")
        return value

    def _check_number(self, field: str, value: Any) -> None:
        if type(value) not in (int, float) or not abs(value) < float("inf"):
            self.fail(field, f"is not a finite number: {value!r}")

    def _check_integer(self, field: str, value: Any, low: int, high: int) -> None:
        # `type`, since True is an int to isinstance.
        if type(value) is not int:
            self.fail(field, f"is not an integer: {value!r}")
        if not low <= value <= high:
            self.fail(field, f"is {value}, outside [{low}, {high}]")


def write_document(path: str | os.PathLike[str], kind: str, version: int, body: dict[str, Any]) -> None:
    """Write `body` as a document of format `memfit-<kind>`, gzipped if `path` ends in ".gz".

    The file appears whole or not at all. Raises InputError if it cannot be written.
    """
    document = {"format": f"memfit-{kind}", "version": version, **body}
    data = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    _write(Path(path), gzip.compress(data, mtime=0) if Path(path).suffix == ".gz" else data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path`; the file appears whole or not at all. Raises InputError if it cannot be written."""
    _write(Path(path), text.encode())


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise InputError if no file can be made at `path` for want of its folder; to be asked before long work."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise InputError(f"cannot write {path}", why=f"the folder {folder} does not exist", remedy=f"mkdir -p {folder}")


def _write(target: Path, data: bytes) -> None:
    try:
        _replace(target, data)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot write {target}", why=why, remedy="choose a writable path") from error


def read_document(path: str | os.PathLike[str], kind: str, version: int) -> Fields:
    """Return the fields of the document of format `memfit-<kind>`, at most `version`, in `path`.

    Raises InputError if it cannot be read, is not such a document, or is newer than `version`.
    """
    source = Path(path)
    values = _parse(source, read_bytes(source))
    if not isinstance(values, dict) or values.get("format") != f"memfit-{kind}":
        found = values.get("format") if isinstance(values, dict) else None
        why = f"its format is {found!r}" if found else "it has no memfit header"
        raise InputError(f"{source} is not a memfit {kind}", why=why, remedy=f"pass a {kind} file")
    fields = Fields(source, "", values)
    if fields.integer("version", 1) > version:
        raise InputError(
            f"{source} was written by a newer memfit",
            why=f"its {kind} version is {values['version']}, this memfit reads up to {version}",
            remedy="pip install --upgrade memfit",
        )
    return fields


def _replace(target: Path, data: bytes) -> None:
    """Put `data` at `target` in one step: whoever reads sees the old file or the new one."""
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the content of the file `path`, unpacked if it is gzipped. Raises InputError if it cannot be read."""
    return _read(Path(path), None)


def read_beginning(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the first `most` bytes of what `read_bytes` returns, without reading the rest; raises as it does."""
    return _read(Path(path), most)


def _read(source: Path, most: int | None) -> bytes:
    try:
        with open(source, "rb") as file:
            if not file.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC):
                return file.read(most)
            with gzip.open(file) as unpacked:
                return unpacked.read(-1 if most is None else most)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        remedy = "the file is cut short or damaged: copy or record it again"
        raise InputError(f"cannot unpack {source}", why=str(error), remedy=remedy) from error
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(f"cannot read {source}", why=why, remedy="check the path") from error


def _parse(source: Path, data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        remedy = "the file is cut short or is not a memfit file"
        raise InputError(f"{source} is not JSON", why=str(error), remedy=remedy) from error
