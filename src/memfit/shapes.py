"""Types and shapes of the tensors of an op, as a recording notes them: "Float[2,3];-;Long[]>Float[2]"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

_ITEM_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_FLOATS = ("Half", "BFloat16", "Float", "Double")
_TENSOR = re.compile(r"(-)|([A-Za-z]\w*)\[([\d,]*)\]")


@dataclass(frozen=True)
class Tensor:
    """The type and shape of a tensor that an op read or made."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of its elements."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """The bytes of one element."""
        return _ITEM_BYTES.get(self.dtype, 4)

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype in _FLOATS

    @property
    def size_bytes(self) -> int:
        """The bytes of its elements, each counted once."""
        return self.count * self.item_bytes


@dataclass(frozen=True)
class Shapes:
    """The tensors that went into an op and that came out; None for one that is missing."""

    inputs: tuple[Tensor | None, ...] = ()
    outputs: tuple[Tensor | None, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The sum over all of them."""
        return sum(tensor.size_bytes for tensor in (*self.inputs, *self.outputs) if tensor)


@lru_cache(maxsize=4096)
def parse_shapes(text: str) -> Shapes:
    """Return the shapes that the recorder wrote as "Float[2,3];-;Long[]>Float[2]"."""
    inputs, _, outputs = text.partition(">")
    return Shapes(_tensors(inputs), _tensors(outputs))


def _tensors(text: str) -> tuple[Tensor | None, ...]:
    found = _TENSOR.finditer(text)
    return tuple(None if m[1] else Tensor(m[2], tuple(int(n) for n in m[3].split(",") if n)) for m in found)
