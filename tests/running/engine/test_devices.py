"""The device that a session governs: the current GPU, or the one that a rank's script will choose."""

from __future__ import annotations

import pytest
import torch

from memfit.errors import InputError
from memfit.running.engine.devices import about_others, parse_device


@pytest.fixture
def gpus(monkeypatch):
    """Pretends that torch sees some GPUs, of which one is current, in a process of that LOCAL_RANK."""

    def see(count: int, current: int, local: int | None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
        monkeypatch.delenv("LOCAL_RANK", raising=False)
        if local is not None:
            monkeypatch.setenv("LOCAL_RANK", str(local))

    return see


@pytest.mark.parametrize("text", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("count", "current", "local", "found"),
    [
        (4, 0, None, 0),
        (4, 2, None, 2),
        (4, 0, 0, 0),
        (4, 0, 3, 3),  # the script has not called set_device yet
        (4, 2, 3, 2),  # it has
        (1, 0, 3, 0),  # the launcher shows each process its own GPU
    ],
)
def test_a_rank_governs_the_gpu_of_its_local_rank_unless_another_is_chosen(gpus, text, count, current, local, found):
    gpus(count, current, local)
    assert parse_device(text) == torch.device("cuda", found)


def test_a_rank_without_a_gpu_of_its_own_is_an_error_and_a_named_gpu_is_not(gpus):
    gpus(2, 0, 2)
    with pytest.raises(InputError, match="no GPU for the process of LOCAL_RANK 2"):
        parse_device("auto")
    assert parse_device("cuda:1") == torch.device("cuda", 1) and parse_device("cpu") == torch.device("cpu")


def test_on_a_machine_without_gpus_ranks_are_on_the_cpu(gpus):
    gpus(0, 0, 1)
    assert parse_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("text", ["auto", "cuda", "cuda:0"])
def test_a_torch_for_amds_gpus_is_refused_with_the_reason(gpus, monkeypatch, text):
    gpus(1, 0, None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(InputError, match="ROCm") as raised:
        parse_device(text)
    assert "--device cpu" in raised.value.remedy and parse_device("cpu") == torch.device("cpu")


def test_other_gpus_are_named_unless_other_ranks_have_them(gpus):
    gpus(4, 2, None)
    assert about_others(torch.device("cuda", 2)) == (
        "the budget is that of cuda:2 alone; torch sees 3 other GPUs, which are left as without memfit"
    )
    gpus(2, 0, None)
    assert "1 other GPU, which is left" in about_others(torch.device("cuda", 0))
    assert about_others(torch.device("cpu")) == ""
    gpus(2, 0, 1)
    assert about_others(torch.device("cuda", 1)) == ""
    gpus(1, 0, None)
    assert about_others(torch.device("cuda", 0)) == ""
