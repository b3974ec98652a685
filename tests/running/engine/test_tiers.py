"""Tiers as the user names them, and a disk behind memory that is too small."""

from __future__ import annotations

import os
import tempfile
from types import SimpleNamespace

import pytest
import torch

import memfit
from memfit.errors import InputError, TierError
from memfit.running.engine.devices import chunk_bytes, default_tier, parse_device
from memfit.running.engine.tiers import TierSpec, parse_tier, tier_for
from memfit.running.host import host_memory_bytes
from running.plainly import same_bits
from running.pressure import BUDGET, COUNT, press, ramp

pytestmark = [pytest.mark.timeout(60), pytest.mark.copied("what the tier has to read and write")]


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("ram", TierSpec("ram")),
        ("ram:8MiB", TierSpec("ram", "", 8 << 20)),
        ("disk", TierSpec("disk", tempfile.gettempdir())),
        ("disk:/tmp", TierSpec("disk", "/tmp")),
        ("ram+disk", TierSpec("ram", tempfile.gettempdir())),
        ("ram:1024+disk:/tmp", TierSpec("ram", "/tmp", 1024)),
        ("disk,compress", TierSpec("disk", tempfile.gettempdir(), compress=True)),
        ("disk:/tmp,compress", TierSpec("disk", "/tmp", compress=True)),
        ("ram:1024+disk:/tmp,compress", TierSpec("ram", "/tmp", 1024, compress=True)),
    ],
)
def test_what_a_tiers_name_means(text, spec):
    assert parse_tier(text) == spec
    assert parse_tier(str(spec)) == spec


@pytest.mark.parametrize("text", ["", "tape", "ram:lots", "ram:-1", "ram+tape", "disk+ram", "ram:8MiB+disk:/none",
                                  "tape,compress", "disk:/none,compress", ",compress", "disk:/tmp,zip"])  # fmt: skip
def test_what_is_no_tier_is_refused_with_a_remedy(text):
    with pytest.raises(InputError) as caught:
        parse_tier(text)
    assert caught.value.remedy


def test_memory_is_not_compressed_and_the_error_says_why():
    with pytest.raises(InputError, match="only what goes to a disk is compressed") as caught:
        parse_tier("ram:1MiB,compress")
    assert caught.value.remedy == "--tier ram:1MiB, or --tier ram:1MiB+disk:/tmp,compress"


def test_more_memory_than_there_is_cannot_be_a_tier():
    with pytest.raises(InputError, match="cannot have"):
        parse_tier(f"ram:{2 * host_memory_bytes()}")


def swapped(tier: str) -> tuple[list[torch.Tensor], list[torch.Tensor], memfit.Stats]:
    """Return what eight tensors of a quarter of the budget are after they have been away, and what they should be."""
    expected = [ramp() + i for i in range(8)]
    with memfit.session(BUDGET, tier, device="cpu") as session:
        found = [ramp() + i for i in range(8)]
        press()
        sums = [tensor.sum().item() for tensor in found]
    assert sums == [tensor.sum().item() for tensor in expected]
    return found, expected, session.stats


def test_what_does_not_fit_into_memory_goes_to_the_disk_behind_it(tmp_path):
    found, expected, stats = swapped(f"ram:{6 * COUNT}+disk:{tmp_path}")
    assert same_bits(found, expected)
    assert stats.bytes_out > 8 * COUNT and stats.tier_used_bytes < stats.tier_footprint_bytes
    assert not list(tmp_path.iterdir())


def test_a_disk_tiers_file_never_takes_the_place_of_a_closed_standard_stream(tmp_path):
    """What is printed there would land among the bytes of tensors."""
    kept = os.dup(0)
    os.close(0)
    try:
        with memfit.session(BUDGET, f"disk:{tmp_path}", device="cpu"), pytest.raises(OSError):
            os.fstat(0)
    finally:
        os.dup2(kept, 0)
        os.close(kept)


def test_memory_that_is_full_with_nothing_behind_it_says_so():
    with pytest.raises(TierError, match="ram tier is full"):
        swapped(f"ram:{6 * COUNT}")


def test_a_gpu_without_memory_of_its_own_has_no_ram_tier(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpu = torch.device("cuda", 0)
    for is_integrated in (0, 1):
        about = SimpleNamespace(is_integrated=is_integrated)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, about=about: about)
        assert tier_for(None, gpu).kind == ("disk" if is_integrated else "ram")
        for tier in ("ram", "ram:4MiB", TierSpec("ram")):
            if is_integrated:
                with pytest.raises(InputError, match="is of no use on cuda:0") as raised:
                    tier_for(tier, gpu)
                assert "no memory of its own" in raised.value.why and "--tier disk" in raised.value.remedy
            else:
                assert tier_for(tier, gpu).kind == "ram"
            assert tier_for(tier, torch.device("cpu")).kind == "ram"
        assert tier_for("disk:/tmp", gpu).kind == "disk"


def test_devices():
    assert parse_device("cpu") == torch.device("cpu") == parse_device("cpu:0")
    if not torch.cuda.is_available():
        assert parse_device("auto") == torch.device("cpu")
        with pytest.raises(InputError, match="no device 'cuda'"):
            memfit.session("1GiB", device="cuda")
    for text in ("meta", "gpu", ""):
        with pytest.raises(InputError, match="no device"):
            parse_device(text)
    assert default_tier(torch.device("cpu")) == "disk" and default_tier(torch.device("cuda")) == "ram"
    assert chunk_bytes(torch.device("cuda"), 16 << 30) == 256 << 20
    assert chunk_bytes(torch.device("cuda"), 80 << 30) == 256 << 20
    assert chunk_bytes(torch.device("cuda"), 8 << 30) == 128 << 20
    assert chunk_bytes(torch.device("cuda"), 1 << 30) == 64 << 20
    assert chunk_bytes(torch.device("cuda"), 1 << 28) == 32 << 20
    assert chunk_bytes(torch.device("cpu"), 16 << 30) == 1 << 18


@pytest.mark.unmapped
def test_a_budget_that_cannot_be_met_is_an_out_of_memory_error_of_torchs_too():
    with (
        memfit.session(BUDGET, device="cpu"),
        pytest.raises(torch.OutOfMemoryError, match="a budget of at least .*, which has room for what this op"),
    ):
        torch.ones(2 * BUDGET, dtype=torch.uint8)
