"""Cells of the probe that try memfit's own ways on the device: what is seen, what is guarded, what is put back."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import memfit
from benchmarks.common.result import Row
from benchmarks.common.timing import in_turn, ns_a_call, timed
from benchmarks.gpu.accelerator import plain_and_attached, prepare, release, synchronize, tier_of, used_bytes
from benchmarks.gpu.cells import Note, Request, describe
from memfit.running import engine

MIB = 1 << 20
_ENTERED = 50  # times a session is entered and left
_GUARDED = 64 * MIB
_QUEUE = 500  # launches before the device is waited for
_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=1e-3, capturable=True),
    "adamw fused, scaler": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
}
_ON_GPU = ("adamw capturable", "adamw fused, scaler")


class Small(nn.Module):
    """One of each kind of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.project, self.last_norm = nn.Linear(16 * 8, 64), nn.LayerNorm(64)
        self.words, self.head = nn.Embedding(64, 64), nn.Linear(64, 10)

    def forward(self, pictures: Tensor, tokens: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(pictures)), inplace=True), 2)
        x = self.project(x.permute(0, 2, 1, 3).flatten(2)) + self.words(tokens)
        heads = x.view(x.shape[0], x.shape[1], 4, 16).transpose(1, 2)
        attended = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        x = functional.dropout(self.last_norm(attended.transpose(1, 2).flatten(2)), 0.1)
        return functional.gelu(self.head(x)).mean(1)


def _step(device: torch.device, name: str) -> Callable[[], None]:
    """Return one training iteration with the optimizer, under autocast."""
    torch.manual_seed(0)
    model = Small().to(device)
    optimizer = _OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=64.0, enabled="scaler" in name)
    dtype = torch.float16 if "scaler" in name else torch.bfloat16
    pictures, tokens = torch.randn(4, 3, 16, 16, device=device), torch.randint(64, (4, 8), device=device)
    labels = torch.randint(10, (4,), device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype):
            loss = functional.cross_entropy(model(pictures, tokens).float(), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def coverage(request: Request, note: Note) -> Row:
    """Compare the ops that the engine sees with those of torch's profiler and of a dispatch mode, by optimizer."""
    device = prepare(request)
    found: Row = {}
    for name in _OPTIMIZERS:
        if device.type == "cuda" or name not in _ON_GPU:
            try:
                found[name] = _compared(_step(device, name), device)
            except Exception as error:
                found[name] = {"error": describe(error)}
            note({"optimizers": found})
    return {"optimizers": found}


def _compared(step: Callable[[], None], device: torch.device) -> Row:
    step()
    profiled = _profiled(step)
    with _Named() as mode:
        step()
    seen, phases = _seen(step, device)
    return {
        "seen": sum(seen.values()), "profiled": sum(profiled.values()), "dispatched": sum(mode.names.values()),
        "phases": phases, "only_profiled": dict(profiled - seen), "only_seen": dict(seen - profiled),
        # What a composite op calls has other names here than the op that the engine saw.
        "only_dispatched": sorted(set(mode.names) - set(seen)),
    }  # fmt: skip


class _Named(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


def _profiled(step: Callable[[], None]) -> Counter[str]:
    """Return the ops of the profiler that no other op called: in the forward, in the backward and the optimizer."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    return Counter(e.name for e in found.events() if e.name.startswith("aten::") and not _within_op(e.cpu_parent))


def _within_op(event: Any) -> bool:
    return event is not None and (event.name.startswith("aten::") or _within_op(event.cpu_parent))


def _seen(step: Callable[[], None], device: torch.device) -> tuple[Counter[str], dict[str, int]]:
    """Return the ops that the engine saw in one iteration, and how many of each phase."""
    with memfit.session(None, "ram", device=device) as session:
        for _ in range(4):
            step()
        ops = session.trace.ops
    return Counter(op.name.partition(".")[0] for op in ops), dict(Counter(str(op.phase) for op in ops))


def guard(request: Request, note: Note) -> Row:
    """Swap tensors out; look at them by their raw pointer, by the door and by an op; and see their pointers move."""
    device, size = prepare(request), (4 * MIB if request["quick"] else _GUARDED)
    is_resident, raw_pointer = engine.load().is_resident, engine.load().original_of(torch.Tensor.data_ptr)
    found: Row = {}

    def away() -> int:
        return next(n for n, tensor in enumerate(tensors) if not is_resident(tensor))

    def in_place() -> bool:
        n = away()
        tensors[n].add_(1).sub_(1)
        return bool((tensors[n] == n + 1).all())

    def door() -> bool:
        tensor = tensors[away()]
        return tensor.data_ptr() != 0 and bool(is_resident(tensor))

    with memfit.session(int(2.5 * size), tier_of(device), device=device, plan=False) as session:
        tensors = [torch.full((size // 4,), float(n + 1), device=device) for n in range(4)]
        found["resident_at_first"] = [bool(is_resident(t)) for t in tensors]
        found["bytes_out"] = session.stats.bytes_out
        note(found)
        found["raw_pointer_of_one_away"] = _attempt(lambda: hex(raw_pointer(tensors[away()])))
        # An op's sum brings the bytes in; then the pointer says where they lie.
        sums, pointers = zip(*[(float(t.sum()), raw_pointer(t)) for _ in range(3) for t in tensors], strict=True)
        found["op_brings_right_bytes"] = list(sums) == 3 * [(n + 1.0) * (size // 4) for n in range(4)]
        found["addresses_of_each"] = [len(set(pointers[n::4])) for n in range(4)]
        found["in_place_on_one_away"] = _attempt(in_place)
        found["door_brings_in_and_pins"] = _attempt(door)
        found["to_host"] = _attempt(lambda: [float(t[-1:].cpu()) for t in tensors])
        found["stats"] = {k: getattr(session.stats, k) for k in ("evictions", "bytes_out", "bytes_in", "relocations")}
    found["after_session"] = _attempt(lambda: [float(t.mean()) for t in tensors])
    return found


def _attempt(action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:
        return {"raised": describe(error)}


def allocator(request: Request, note: Note) -> Row:
    """Enter and leave sessions: whose allocator serves what, what statistics say, what is left."""
    device, size = prepare(request), 8 * MIB
    outside = torch.full((size,), 7, dtype=torch.uint8, device=device)
    found: Row = {"before": _statistics(device)}
    with memfit.session(1 << 30, tier_of(device), device=device) as session:
        inside = torch.full((size,), 9, dtype=torch.uint8, device=device)
        found |= {"inside": _statistics(device), "live_inside": session.stats.live_bytes}
        if device.type == "cuda":
            found["other_stream_is_native"] = _attempt(lambda: _aside(device, session, size))
        found["freed_inside"] = _attempt(lambda: _freed(device, session, size))
    note(found)
    found |= {"after": _statistics(device), "survivor": int(inside.sum()) == 9 * size, "outside": int(outside[-1]) == 7}
    found["cache_can_be_emptied"] = _attempt(lambda: release(device))
    del inside, outside
    release(device)
    used = used_bytes(device)
    _, seconds = timed(partial(_enter, device, _ENTERED))
    release(device)
    grown = None if used is None else (used_bytes(device) or 0) - used
    return found | {"entered": _ENTERED, "seconds_each": seconds / _ENTERED, "grown_bytes": grown}


def _enter(device: torch.device, times: int) -> None:
    for _ in range(times):
        with memfit.session(64 * MIB, tier_of(device), device=device):
            torch.ones(1024, device=device).sum()
    synchronize(device)


def _statistics(device: torch.device) -> Row:
    if device.type != "cuda":
        return {}
    stats = torch.cuda.memory_stats(device)
    names = ("allocated_bytes.all.current", "reserved_bytes.all.current", "allocation.all.current", "num_ooms")
    return {name: stats.get(name) for name in names} | {"driver_bytes": used_bytes(device)}


def _aside(device: torch.device, session: Any, size: int) -> bool:
    before = session.stats.live_bytes
    with torch.cuda.stream(torch.cuda.Stream(device)):
        held = torch.empty(size, dtype=torch.uint8, device=device)
    return held.numel() == size and session.stats.live_bytes == before


def _freed(device: torch.device, session: Any, size: int) -> bool:
    before = session.stats.live_bytes
    held = torch.empty(size, dtype=torch.uint8, device=device)
    grown = session.stats.live_bytes - before
    del held
    return bool(grown >= size and session.stats.live_bytes == before)


def op_cost(request: Request, note: Note) -> Row:
    """Return the time of a tiny op on the host, plain and attached in turn."""
    device, queues = prepare(request | {"deterministic": False}), 4 if request["quick"] else 40
    a = torch.ones(4, device=device)

    def op_ns() -> float:
        """Time the calls without waiting for the device between them; the queue is emptied now and then."""
        return statistics.mean(ns_a_call(lambda: a + a, _QUEUE, partial(synchronize, device)) for _ in range(queues))

    ns = in_turn(plain_and_attached(device, op_ns), 5)
    pairs = [dict(zip(ns, pair, strict=True)) for pair in zip(*ns.values(), strict=True)]
    return {"pairs": pairs, "more_ns": statistics.median(pair["attached_ns"] - pair["plain_ns"] for pair in pairs)}
