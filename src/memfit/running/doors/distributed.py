"""What torch.distributed does beside its collectives, which are ops.

DDP's reducer asks between ops, in C++, whether gradients lie in its buckets; the engine answers. Where it cannot, its
buckets stay where they are made. What is broadcast when a module is made goes in parts, so that no op needs all
parameters twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import replaced

BROADCAST_BYTES = 1 << 20
"""The most that is broadcast at once, if it is not one tensor. It is the same for all ranks, whatever their budgets."""


@contextmanager
def collectives_seen(engine: EngineModule) -> Iterator[None]:
    """Answer what DDP asks, and cut what it broadcasts, for as long as the context is open."""
    if not dist.is_available():
        yield
        return
    native: Any = torch._C._distributed_c10d
    reducer, group, work = native.Reducer, native.ProcessGroup, native.Work
    with ExitStack() as stack:
        for_good = not engine.answer_for_aliases()
        for name in ("__init__", "_rebuild_buckets"):
            stack.enter_context(replaced(reducer, name, _keeping(engine, getattr(reducer, name), for_good)))
        stack.enter_context(replaced(dist, "_broadcast_coalesced", _in_parts(native._broadcast_coalesced)))
        stack.enter_context(replaced(work, "wait", _telling(engine, work.wait)))
        for name, on in (("_start_coalescing", True), ("_end_coalescing", False)):
            stack.enter_context(replaced(group, name, _coalescing(engine, getattr(group, name), on)))
        yield


def _keeping(engine: EngineModule, call: Callable[..., Any], for_good: bool) -> Callable[..., Any]:
    """The reducer writes and reads, by raw pointers, what it broadcasts to agree on its buckets."""

    @functools.wraps(call)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        engine.begin_to_keep()
        try:
            return call(*args, **kwargs)
        finally:
            engine.end_keeping(for_good)

    return keeping


def _in_parts(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(broadcast)
    def in_parts(process_group: Any, tensors: Any, buffer_size: int, *args: Any, **kwargs: Any) -> Any:
        return broadcast(process_group, tensors, min(buffer_size, BROADCAST_BYTES), *args, **kwargs)

    return in_parts


def _telling(engine: EngineModule, wait: Callable[..., Any]) -> Callable[..., Any]:
    """Some of gloo's Works are carried out by `wait`, and do not know afterwards that they were."""

    @functools.wraps(wait)
    def telling(work: Any, *args: Any, **kwargs: Any) -> Any:
        result = wait(work, *args, **kwargs)
        engine.collective_is_over(work)
        return result

    return telling


def _coalescing(engine: EngineModule, call: Callable[..., Any], on: bool) -> Callable[..., Any]:
    """Works of a block of collectives that are launched as one do not know when it ends."""

    @functools.wraps(call)
    def coalescing(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        engine.coalesce_collectives(on)
        return result

    return coalescing
