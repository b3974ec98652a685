"""The stress of a block ends with it, and that of the whole run goes on."""

from collections.abc import Iterator

import pytest
import torch

import memfit
from memfit.running import engine
from running.stress.compare import STRESSES, stressed

OPS = 20


@pytest.fixture(autouse=True)
def as_before(monkeypatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    with stressed(STRESSES[0]):
        pass  # leaves what the run itself asks for


def is_stressed() -> bool:
    """Whether storages move, leave or are discarded before every op, or ops are split, though there is room for all."""
    with memfit.session(1 << 24, "ram", device="cpu") as session:
        x = torch.rand(1 << 16)
        made = x * 2
        for _ in range(OPS):
            made + 1
    stats = session.stats
    return stats.evictions + stats.relocations + stats.discards + stats.split_ops >= OPS - 1  # the first one is tried


def test_a_plain_run_is_not_stressed():
    engine.load().set_stress("")
    assert not is_stressed()


@pytest.mark.parametrize("asked", ["", *STRESSES])
@pytest.mark.parametrize("stress", STRESSES)
def test_after_a_stressed_block_there_is_the_stress_again_that_was_asked_for(asked, stress, monkeypatch):
    monkeypatch.setenv("MEMFIT_STRESS", asked)
    with stressed(stress):
        assert is_stressed()
    assert is_stressed() == bool(asked)
