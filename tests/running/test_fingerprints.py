"""A write that no op made is not lost: a storage is compared with its copy's fingerprint before the copy is trusted."""

import ctypes

import pytest
import torch
from torch import nn

from memfit import session
from memfit.running import engine

pytestmark = pytest.mark.usefixtures("on_its_own")

COUNT = 50_000  # elements


def poke(tensor: torch.Tensor, index: int, value: float) -> bool:
    """Write as a compiled kernel or an extension would, without an op or a door. False where the bytes are away."""
    native = engine.load()
    if native.active() and not native.is_resident(tensor):
        return False
    address = native.original_of(torch.Tensor.data_ptr)(tensor)
    ctypes.c_float.from_address(address + 4 * index).value = value
    return True


def press(bytes_: int) -> None:
    torch.zeros(bytes_, dtype=torch.uint8)


@pytest.mark.unstressed("what is in memory between ops")
@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("index", [0, 1, 7, 25_001, COUNT - 1])
def test_an_unseen_write_to_a_clean_storage_is_kept_counted_and_told_of(tier, index, capfd):
    with session(1 << 20, tier, device="cpu") as s:
        x = torch.zeros(COUNT)
        press(1 << 20)  # it leaves, and its copy is right
        assert x.min() == 0
        assert poke(x, index, -3.0)
        press(1 << 20)
        assert x[index] == -3 and x.sum() == -3
        assert s.stats.unseen_writes == 1
        press(1 << 20)
        assert x.sum() == -3 and s.stats.unseen_writes == 1 and s.stats.drops > 0
    said = capfd.readouterr().err
    assert said.count("no op was seen to write") == 1 and "aten::min" in said and "test_fingerprints.py:" in said


@pytest.mark.unstressed("what is in memory between ops")
def test_flipped_signs_do_not_cancel_out():
    with session(1 << 20, "ram", device="cpu") as s:
        x = torch.ones(COUNT, dtype=torch.float64)
        press(1 << 20)
        assert x.max() == 1
        address = engine.load().original_of(torch.Tensor.data_ptr)(x)
        values = (ctypes.c_double * COUNT).from_address(address)
        values[:] = [-1.0] * COUNT
        press(1 << 20)
        assert x.max() == -1 and s.stats.unseen_writes == 1


@pytest.mark.unstressed("what is in memory between ops")
def test_what_is_only_read_is_dropped_and_not_copied_again():
    with session(1 << 20, "ram", device="cpu") as s:
        x = torch.arange(float(COUNT))
        for _ in range(5):
            press(1 << 20)
            assert x[3] == 3
        stats = s.stats
    assert stats.drops >= 4 and stats.unseen_writes == 0 and stats.bytes_checked >= 4 * 4 * COUNT
    assert stats.bytes_out == 4 * COUNT


def train(steps: int) -> tuple[list[float], int]:
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.Tanh())))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    average, losses, poked = torch.zeros(128 * 128), [], 0
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(64, 128)
        loss = net(x).square().mean() + average.mean()
        if poke(average, step, float(step)):
            poked += 1
        else:
            average[step] = step
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, poked


@pytest.mark.unstressed("what is in memory between ops")
def test_an_unseen_write_beside_a_planned_copy_is_kept():
    plain, _ = train(40)
    with session("60%", "ram", device="cpu") as s:
        limited, poked = train(40)
    assert limited == plain
    assert poked > 5 and s.stats.unseen_writes > 5 and s.stats.swaps > 0
