"""A tier's compression on a medium in memory, compiled from its sources by themselves."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memfit.running import engine

NATIVE = Path(__file__).parents[2] / "native"
PACKET = 256 << 10
PAGE = 4096
SLOW = 4.0  # nanoseconds a byte: a medium for which every codec pays
Bytes = NDArray[np.uint8]


def build(folder: Path) -> ctypes.CDLL:
    """Return the functions of compression_probe.cc."""
    library = folder / "probe.so"
    command = [*(engine.compiler() or ["c++"]), "-O1", "-std=c++20", "-shared", "-fPIC", "-pthread"]
    command += [f"-I{NATIVE}", f"-I{NATIVE / 'engine'}", str(Path(__file__).with_name("compression_probe.cc"))]
    done = subprocess.run([*command, "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    functions = ctypes.CDLL(str(library))
    functions.make.restype = functions.stored.restype = ctypes.c_void_p
    functions.make.argtypes = [ctypes.c_size_t, ctypes.c_double]
    functions.failure.restype = ctypes.c_char_p
    sizes = ("pack", "squeeze", "stored_at", "bytes_stored", "bytes_loaded", "codecs")
    for name in (*sizes, "writes", "reads", "time_ns"):
        getattr(functions, name).restype = ctypes.c_size_t
    return functions


def at(values: Bytes, offset: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data + offset)


class Failed(Exception):
    pass


class Medium:
    """A medium that compresses, before one of memory."""

    def __init__(self, functions: ctypes.CDLL, capacity: int, ns_per_byte: float) -> None:
        self.functions = functions
        self.probe = ctypes.c_void_p(functions.make(capacity, ns_per_byte))
        self.stored: Bytes = np.ctypeslib.as_array(
            ctypes.cast(functions.stored(self.probe), ctypes.POINTER(ctypes.c_uint8)), (capacity,)
        )

    def write(self, offset: int, values: Bytes) -> None:
        size = ctypes.c_size_t(values.nbytes)
        if not self.functions.put(self.probe, ctypes.c_size_t(offset), at(values), size):
            raise Failed(self.functions.failure().decode())

    def read(self, offset: int, size: int) -> Bytes:
        found = np.full(size, 0xAB, np.uint8)
        if not self.functions.get(self.probe, ctypes.c_size_t(offset), at(found), ctypes.c_size_t(size)):
            raise Failed(self.functions.failure().decode())
        return found

    def discard(self, offset: int, size: int) -> None:
        self.functions.discard(self.probe, ctypes.c_size_t(offset), ctypes.c_size_t(size))

    def claim(self, offset: int, size: int) -> None:
        if not self.functions.claim(self.probe, ctypes.c_size_t(offset), ctypes.c_size_t(size)):
            raise Failed(self.functions.failure().decode())

    def ends_iteration(self, waited_ns: int, copied_ns: int) -> None:
        self.functions.iteration_ends(self.probe, ctypes.c_uint64(waited_ns), ctypes.c_uint64(copied_ns))

    def fills_up(self, whether: bool) -> None:
        self.functions.fill_up(self.probe, int(whether))

    def takes(self, offset: int, size: int) -> int:
        return int(self.functions.stored_at(self.probe, ctypes.c_size_t(offset), ctypes.c_size_t(size)))

    def fails(self, whether: bool) -> None:
        self.functions.fail(self.probe, int(whether))

    def count(self, name: str) -> int:
        return int(getattr(self.functions, name)(self.probe))


@contextmanager
def medium(functions: ctypes.CDLL, capacity: int = 4 << 20, ns_per_byte: float = SLOW) -> Iterator[Medium]:
    made = Medium(functions, capacity, ns_per_byte)
    try:
        yield made
    finally:
        functions.destroy(made.probe)
