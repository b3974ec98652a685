"""What leaves a session is laid out as plainly: the bits that are computed of it depend on that."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.dlpack import from_dlpack, to_dlpack

import memfit


def loaded(tensor: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


WAYS: dict[str, Callable[[Tensor], Any]] = {
    "array": np.array, "asarray": np.asarray, "array(float64)": lambda t: np.array(t, dtype=np.float64),
    "array(C)": lambda t: np.array(t, order="C"), "array(F)": lambda t: np.array(t, order="F"), "copy": np.copy,
    "array(K)": lambda t: np.array(t, copy=True, order="K"), "array(ndmin)": lambda t: np.array(t, ndmin=5),
    "contiguous": np.ascontiguousarray, "fortran": np.asfortranarray, "stack": lambda t: np.stack([t, t]),
    "__array__": lambda t: t.__array__(), "numpy": lambda t: t.numpy(), "forced": lambda t: t.numpy(force=True),
    "resolved": lambda t: t.detach().cpu().numpy(), "dlpack": np.from_dlpack,
    "dlpack(copy)": lambda t: np.from_dlpack(t, copy=True), "to torch": lambda t: torch.from_dlpack(t),
    "to torch (copy)": lambda t: torch.from_dlpack(t, copy=True), "capsule": lambda t: from_dlpack(to_dlpack(t)),
    "pickled": lambda t: pickle.loads(pickle.dumps(t)), "saved": loaded, "deepcopy": copy.deepcopy,
    "clone": torch.clone, "tensor": torch.asarray, "tolist": lambda t: t.tolist(),
}  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn) -> Callable[[], Tensor]:
    """Draw a view of a tensor: permuted, with steps, expanded or of no element."""
    sizes = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    steps = draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    axes = draw(st.permutations(range(len(sizes))))
    expanded = draw(st.booleans())
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int16, torch.bool, torch.complex64]))

    def make() -> Tensor:
        whole = torch.arange(float(np.prod([s * k for s, k in zip(sizes, steps, strict=True)], initial=1)))
        made = whole.to(dtype).reshape([size * step for size, step in zip(sizes, steps, strict=True)])
        made = made[tuple(slice(None, None, step) for step in steps)].permute(*axes)
        return made.unsqueeze(0).expand(2, *made.shape) if expanded else made

    return make


def layout(value: Any) -> Any:
    """Return all there is to know of an array or a tensor."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        # (Strides of axes with one element lead nowhere: numpy takes others where it is told an order or a type.)
        strides = [stride for stride, size in zip(value.strides, value.shape, strict=True) if size != 1]
        return value.dtype, value.shape, strides, flags.c_contiguous, flags.f_contiguous, value.tobytes()
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.stride(), value.contiguous().numpy().tobytes()
    return value


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
@given(make=layouts())
def test_it_is_laid_out_as_plainly(way, make):
    def seen() -> Any:
        try:
            return layout(WAYS[way](make()))
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            return type(error)

    expected = seen()
    with memfit.session(1 << 20, "ram"):
        assert seen() == expected
