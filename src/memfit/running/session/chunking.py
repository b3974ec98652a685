"""Ops on lists of tensors, split so that no single op needs all of them at once.

A foreach or fused optimizer step names every parameter, gradient and moment in one op, whose working set is
then the whole optimizer. They work tensor by tensor, so a call on a part of the lists gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from memfit.running.doors.uncompiled import uncompiled
from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import redirected
from memfit.running.frames import passing, unseen

_OTHERS = (
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
    "_fused_adagrad_",
    "_amp_foreach_non_finite_check_and_unscale_",
)


@contextmanager
def installed(engine: EngineModule, chunk_bytes: int) -> Iterator[None]:
    """Split calls of torch's list ops for as long as the context is open.

    A part has at most `chunk_bytes` of tensors, or one entry of each list if that is more. The functions keep their
    names and identities: the compiler remembers both for as long as the process lasts.
    """

    def answer(original: Any) -> Any:
        return uncompiled(passing(_chunked(original, chunk_bytes)))

    names = [name for name in dir(torch) if name.startswith("_foreach_")]
    names += [name for name in _OTHERS if hasattr(torch, name)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(redirected(engine, getattr(torch, name), answer))
        yield


def _chunked(op: Any, chunk_bytes: int) -> Any:
    def in_chunks(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # compiled code is to be the same as without a session
            return op(*args, **kwargs)
        lists = [a for a in (*args, *kwargs.values()) if _is_list(a) and a]
        count = _length(lists)
        # Lists of different lengths are an error, or one that only the op itself knows what to do with.
        if count < 2 or any(len(a) != count for a in lists):
            return op(*args, **kwargs)
        with unseen():
            bounds = _bounds(lists, count, chunk_bytes)
            parts = _parts(args, kwargs, count, bounds) if len(bounds) > 1 else []
        return _joined([op(*some, **named) for some, named in parts]) if parts else op(*args, **kwargs)

    return in_chunks


def _parts(
    args: Sequence[Any], kwargs: Mapping[str, Any], count: int, bounds: Sequence[tuple[int, int]]
) -> list[tuple[list[Any], dict[str, Any]]]:
    """Return the arguments of each part of a call."""
    return [
        (
            [_part(argument, count, *bound) for argument in args],
            {key: _part(argument, count, *bound) for key, argument in kwargs.items()},
        )
        for bound in bounds
    ]


def _is_list(argument: Any) -> bool:
    return isinstance(argument, (list, tuple))


def _length(lists: Sequence[Any]) -> int:
    """Return the length of the first list of tensors, with which the others are split."""
    return next((len(a) for a in lists if isinstance(a[0], torch.Tensor)), 0)


def _bounds(lists: Sequence[Any], count: int, chunk_bytes: int) -> list[tuple[int, int]]:
    bounds, begin, taken = [], 0, 0
    for i in range(count):
        size = sum(_size(a[i]) for a in lists if isinstance(a[i], torch.Tensor))
        if i > begin and taken + size > chunk_bytes:
            bounds.append((begin, i))
            begin, taken = i, 0
        taken += size
    return [*bounds, (begin, count)]


def _size(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, or of those that a sparse one consists of."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices().nbytes + tensor._values().nbytes
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices().nbytes + tensor.col_indices().nbytes + tensor.values().nbytes
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices().nbytes + tensor.row_indices().nbytes + tensor.values().nbytes
    return tensor.nbytes if tensor.layout is torch.strided and not tensor.is_nested else 0


def _part(argument: Any, count: int, begin: int, end: int) -> Any:
    # Of scalars in a tensor there is one for each entry of the lists; a tensor of another size is for all of them.
    entries = _is_list(argument) and argument or isinstance(argument, torch.Tensor) and argument.shape == (count,)
    return argument[begin:end] if entries else argument


def _joined(results: list[Any]) -> Any:
    if results[0] is None:
        return None
    joined = [tensor for result in results for tensor in result]
    return tuple(joined) if isinstance(results[0], tuple) else joined
