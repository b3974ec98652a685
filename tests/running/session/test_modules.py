"""Storages are named by the module in whose call they were allocated."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

import memfit
from memfit.running.session.modules import Modules


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 24), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x * 2)


def test_a_trace_says_which_module_allocated_what():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.randn(8, 16)).sum().backward()
        optimizer.step()

    trace = memfit.record(step)
    modules = {s.module for s in trace.storages if not s.born_before}
    assert modules == {"", "Net", "Net.blocks.0", "Net.blocks.0.inner.0", "Net.blocks.0.inner.1", "Net.head"}
    of_head = [s.size_bytes for s in trace.storages if s.module == "Net.head"]
    assert of_head == [4 * 8 * 5]
    assert all(not s.module for s in trace.storages if s.born_before)


def test_a_trace_on_meta_does_so_too():
    net = Net().to("meta")

    def step() -> None:
        net.zero_grad()
        net(torch.empty(8, 16, device="meta")).sum().backward()

    trace = memfit.record_meta(step)
    assert [s.size_bytes for s in trace.storages if s.module == "Net.head"] == [4 * 8 * 5]


@pytest.fixture
def counted() -> Iterator[tuple[Modules, list[int]]]:
    """Yield modules that are watched, and a clock of ticks: one a look."""
    clock = [0]

    def tick() -> int:
        clock[0] += 1
        return clock[0]

    modules = Modules(tick)
    with modules.watched():
        yield modules, clock


def test_a_call_that_fails_is_over(counted):
    modules, _ = counted
    net = Net()
    with pytest.raises(RuntimeError):
        net(torch.ones(8, 3))
    net.head(torch.ones(8, 24))
    assert [name for *_, name in modules.calls()][-1] == "Linear"  # not one of the call that has failed


def test_each_thread_has_its_own_calls(counted):
    modules, _ = counted
    inside, over = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.ReLU()  # which is called here meanwhile, by itself

        def forward(self, x: Tensor) -> Tensor:
            inside.set()
            over.wait(10)
            return x

    waits = Waits()
    thread = threading.Thread(target=waits, args=(torch.ones(1),))
    thread.start()
    assert inside.wait(10)
    waits.inner(torch.ones(1))
    over.set()
    thread.join()
    assert sorted(name for *_, name in modules.calls()) == ["ReLU", "Waits"]


def test_a_module_that_was_called_is_not_kept(counted):
    modules, _ = counted
    net = Net()
    known = weakref.ref(net)
    net(torch.ones(8, 16))
    del net
    gc.collect()
    assert known() is None and len(modules.calls()) == 6


def test_no_hook_stays():
    with Modules(lambda: 0).watched():
        assert hooks._global_forward_hooks
    assert not hooks._global_forward_hooks and not hooks._global_forward_pre_hooks
