from pathlib import Path

import pytest
import torch

from memfit.planning.partition import Speeds
from memfit.running.engine.tiers import TierSpec, tier_for
from memfit.running.machine import compute

CPU = torch.device("cpu")


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TierSpec:
    monkeypatch.setattr(compute.engine, "cache_folder", lambda: tmp_path / "cache")
    return tier_for("ram", CPU)


@pytest.mark.long
def test_speeds_are_measured_once_and_then_the_same_for_every_process(tier, monkeypatch):
    speeds = compute.speeds_to(tier, CPU)
    assert 1e8 < speeds.flops < 1e16
    assert 1e8 < speeds.memory_bytes_per_s < 1e13
    assert 1e7 < speeds.tier_bytes_per_s < speeds.memory_bytes_per_s * 8
    assert speeds == speeds.rounded()
    monkeypatch.setattr(compute, "_compute", None)  # it is not asked again
    assert compute.speeds_to(tier, CPU) == speeds


@pytest.mark.long
def test_a_damaged_file_is_measured_anew(tier):
    speeds = compute.speeds_to(tier, CPU)
    compute.speeds_file(tier, CPU).write_text("{")
    assert isinstance(compute.speeds_to(tier, CPU), Speeds)
    compute.speeds_file(tier, CPU).unlink()
    assert set(map(type, compute.speeds_to(tier, CPU).as_tuple())) == set(map(type, speeds.as_tuple()))


def test_other_threads_have_speeds_of_their_own(tier, monkeypatch):
    one = compute.speeds_file(tier, CPU)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert compute.speeds_file(tier, CPU) != one
