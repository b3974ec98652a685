"""Pickles of plain data, read without executing anything.

A pickle is a program: it may import and call what its author likes. Here it may build None, bool, int, float, str,
bytes, and lists, tuples and dicts of them, with plain keys. Whatever it would import or look up elsewhere is refused
before that happens.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
from typing import Any, ClassVar, NoReturn

from memfit.errors import InputError
from memfit.files.document import read_bytes

# All that a damaged pickle of plain data raises in the unpickler; none of it is a fault of memfit.
_DAMAGE = (
    pickle.UnpicklingError,
    struct.error,
    EOFError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    OverflowError,
    MemoryError,
)


class _Refused(Exception):
    """The pickle asks for more than plain data."""


_STEPS: dict[int, Any] = pickle._Unpickler.dispatch  # the step of each opcode


class _PlainUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python, whose steps can be looked at: the one in C is ten times as fast.

    A container as a key has to be hashed, and a tuple of a tuple of ... of two tuples takes for ever, in C, where not
    even Ctrl-C ends it. Plain data has names and numbers as keys, and no sets.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(_STEPS)
    stack: list[Any]

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise _Refused(f"it names {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _Refused("it refers to an object outside the file")

    def set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        _STEPS[pickle.SETITEM[0]](self)

    def set_items(self) -> None:
        _check_keys(self.stack[::2])
        _STEPS[pickle.SETITEMS[0]](self)

    def make_dict(self) -> None:
        _check_keys(self.stack[::2])
        _STEPS[pickle.DICT[0]](self)

    def make_set(self) -> NoReturn:
        raise _Refused("it holds a set")

    dispatch[pickle.SETITEM[0]] = set_item
    dispatch[pickle.SETITEMS[0]] = set_items
    dispatch[pickle.DICT[0]] = make_dict
    dispatch[pickle.EMPTY_SET[0]] = dispatch[pickle.FROZENSET[0]] = make_set


def _check_keys(keys: list[Any]) -> None:
    for key in keys:
        if isinstance(key, tuple | list | dict):
            raise _Refused(f"it has a {type(key).__name__} as a key")


def load_plain_pickle(path: str | os.PathLike[str]) -> Any:
    """Return the plain data pickled in `path`, gzipped or not.

    Raises InputError if it is cut short or damaged, or if it holds anything but plain data.
    """
    try:
        return _PlainUnpickler(io.BytesIO(read_bytes(path))).load()
    except _Refused as error:
        why = f"{error}; plain dicts, lists, numbers and strings are all that a memory snapshot needs"
        remedy = "do not load this file with pickle: it may run code; record it again from a source you trust"
        raise InputError(f"{path} is not a pickle of plain data", why=why, remedy=remedy) from error
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {error}"
        remedy = "the file is cut short or is not a pickle: copy or record it again"
        raise InputError(f"cannot unpickle {path}", why=why, remedy=remedy) from error


def brief(value: Any) -> str:
    """Return a few words for `value`; the whole text of a small file's may be endless, or too deep."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return repr(value[:60])
    if value is None or isinstance(value, int | float):
        return repr(value)
    return f"a {type(value).__name__} of {len(value)}"
