"""What torch.distributed does beside its collectives, which are ops.

DDP's reducer looks at its buckets between ops, in C++: they stay where they are made. What it broadcasts when it is made
goes in parts, so that no op needs all parameters once more.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from memfit.running.engine.module import EngineModule
from memfit.running.engine.patching import held, replaced

BROADCAST_BYTES = 1 << 20
"""The most that is broadcast at once, if it is not one tensor. All ranks have to say the same, whatever their budgets."""


@contextmanager
def collectives_seen(engine: EngineModule) -> Iterator[None]:
    """Keep what DDP looks at where it is, and cut what it broadcasts, for as long as the context is open."""
    if not dist.is_available():
        yield
        return
    with ExitStack() as stack:
        for name in ("__init__", "_rebuild_buckets"):
            stack.enter_context(replaced(dist.Reducer, name, _pinning(engine, getattr(dist.Reducer, name))))
        stack.enter_context(replaced(dist, "_broadcast_coalesced", _in_parts(dist._broadcast_coalesced)))
        group = torch._C._distributed_c10d.ProcessGroup
        for name, on in (("_start_coalescing", True), ("_end_coalescing", False)):
            stack.enter_context(replaced(group, name, _coalescing(engine, getattr(group, name), on)))
        if dist.is_initialized():
            _pin_buckets(engine)
        yield


def _pinning(engine: EngineModule, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def pinning(*args: Any, **kwargs: Any) -> Any:
        before = engine.pin_allocations(True)
        try:
            return call(*args, **kwargs)
        finally:
            engine.pin_allocations(before)

    return pinning


def _in_parts(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(broadcast)
    def in_parts(process_group: Any, tensors: Any, buffer_size: int, *args: Any, **kwargs: Any) -> Any:
        return broadcast(process_group, tensors, min(buffer_size, BROADCAST_BYTES), *args, **kwargs)

    return in_parts


def _coalescing(engine: EngineModule, call: Callable[..., Any], on: bool) -> Callable[..., Any]:
    """Works of a block of collectives that are launched as one do not know when it ends."""

    @functools.wraps(call)
    def coalescing(*args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        engine.coalesce_collectives(on)
        return result

    return coalescing


def _pin_buckets(engine: EngineModule) -> None:
    """Pin gradients that lie in the buckets of a DDP module from before the session. (Others are, at their first use.)"""
    ddp = torch.nn.parallel.DistributedDataParallel
    for module in [thing for thing in gc.get_objects() if issubclass(type(thing), ddp)]:
        grads = [p.grad for p in module.parameters() if p.grad is not None] if module.gradient_as_bucket_view else []
        with held(engine, grads, pin=True):
            pass
