"""What lies behind a storage can be moved and taken away whoever holds the storage, and while it is dying."""

from __future__ import annotations

import gc
from collections import deque

import pytest
import torch

from memfit import session
from memfit.running import engine
from running.pressure import is_resident, press, ramp
from running.side_by_side import at_once, hurried

pytestmark = pytest.mark.timeout(120)


@pytest.mark.unstressed("what is in memory between ops")
def test_a_storage_that_only_its_python_object_holds_leaves_and_comes_back():
    with session(1 << 20, "ram", device="cpu") as s:
        held = [(ramp() + i).untyped_storage() for i in range(4)]
        press()
        assert not any(is_resident(storage) for storage in held) and s.stats.evictions >= 4
        assert all(torch.equal(torch.tensor([]).set_(storage), ramp() + i) for i, storage in enumerate(held))
        del held[2:]
        press()
    assert all(torch.equal(torch.tensor([]).set_(storage), ramp() + i) for i, storage in enumerate(held))


def test_a_lazy_clone_shares_the_bytes_until_it_is_written_to():
    with session(1 << 20, "ram", device="cpu"):
        x = ramp()
        clone = torch._lazy_clone(x)
        press()
        clone.add_(1)
        press()
        assert torch.equal(x, ramp()) and torch.equal(clone, ramp() + 1)
    assert torch.equal(x, ramp()) and torch.equal(clone, ramp() + 1)


@pytest.mark.copied("how often storages leave")
def test_storages_that_die_in_one_thread_while_others_push_them_out():
    """Under the sanitizers: no storage is freed twice, and none is written to after its end."""

    def dies(seed: int) -> None:
        kept: deque[object] = deque(maxlen=12)  # more than the budget
        for i in range(300):
            tensor = torch.full((1 << 14,), float(seed + i))
            kept.append(tensor if i % 2 else tensor.untyped_storage())
            if i % 2 == 0:
                assert torch.tensor([]).set_(kept[-1])[5] == seed + i

    def pushes() -> None:
        for _ in range(150):
            assert torch.ones(1 << 16).sum() == 1 << 16

    with session(640 << 10, "ram", device="cpu") as s, hurried(1e-5):
        assert at_once([lambda: dies(0), lambda: dies(1000), pushes]) == [None] * 3
        gc.collect()
        assert s.stats.evictions > 0
        assert engine.load().in_use() == [0, 0, 0]
