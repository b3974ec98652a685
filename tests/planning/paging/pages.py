"""Traces for tests of paging, and an oracle that goes chunk by chunk."""

from __future__ import annotations

from memfit.ir import Trace
from memfit.machine import Faults, Link, Machine
from trace_builder import TraceBuilder

MIB = 1 << 20
LINK = Machine("link", Link.of_bandwidth(1.0, 0.0), Link.of_bandwidth(2.0, 0.0))  # 1,000 and 2,000 bytes a microsecond


def chunks_of(size_bytes: int, **more: object) -> Faults:
    """Chunks of this size that leave one by one, without a latency."""
    return Faults(**({"fault_us": 0.0, "chunk_bytes": size_bytes, "block_bytes": size_bytes} | more))


def one_op(name: str, sizes: list[int], writes: list[int] = (), duration_us: float = 1.0) -> Trace:
    """An op on storages that are always there: it reads those of `sizes`, and writes to some of them."""
    builder = TraceBuilder(alignment=512)
    storages = [builder.before(size) for size in sizes]
    builder.op(name, reads=storages, writes=[storages[i] for i in writes], duration_us=duration_us)
    return builder.build()


class Oracle:
    """A window of equal chunks: what is touched comes in, what makes room leaves."""

    def __init__(self, rule: str, *, keeps_copies: bool = True) -> None:
        self.capacity, self.rule, self.keeps_copies = 0, rule, keeps_copies
        self.here: list[object] = []  # in the order of arrival, or of use
        self.written: set[object] = set()
        self.copies: set[object] = set()
        self.faults = self.chunks_in = self.chunks_out = 0

    def allow(self, capacity: int) -> None:
        self.capacity = capacity
        while len(self.here) > capacity:
            self.leave(self.victim())

    def touch(self, chunk: object, *, writes: bool = False) -> None:
        if chunk not in self.here:
            self.faults += 1
            while len(self.here) >= self.capacity:
                self.leave(self.victim())
            if chunk in self.copies:
                self.chunks_in += 1
                if not self.keeps_copies:
                    self.written.add(chunk)
            self.here.append(chunk)
        elif self.rule == "LEAST_RECENT":
            self.here.remove(chunk)
            self.here.append(chunk)
        if writes:
            self.written.add(chunk)

    def victim(self) -> object:
        return self.here[-8 if self.rule == "NEWEST" and len(self.here) >= 8 else 0]

    def leave(self, chunk: object) -> None:
        self.here.remove(chunk)
        if chunk in self.written:
            self.written.remove(chunk)
            self.copies.add(chunk)
            self.chunks_out += 1

    def drop(self, chunk: object) -> None:
        if chunk in self.here:
            self.here.remove(chunk)
        self.written.discard(chunk)
        self.copies.discard(chunk)
