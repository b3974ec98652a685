"""Libraries that try a smaller batch when memory runs out know memfit's error for what it is."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import BudgetError

pytestmark = [pytest.mark.timeout(120), pytest.mark.unmapped]
WIDTH = 1 << 10
BUDGET = 6 << 20


def step(batch: int) -> torch.Tensor:
    """Ops on a `batch` of rows of 4 KiB: 1,024 of them do not fit, 256 do."""
    rows = torch.ones(batch, WIDTH)
    return (rows + rows).sum()


@pytest.fixture
def error() -> BudgetError:
    with memfit.session(BUDGET, "ram", split="never", map="never"), pytest.raises(torch.OutOfMemoryError) as caught:
        step(4096)
    assert isinstance(caught.value, BudgetError)
    return caught.value


def test_accelerates_finder_goes_on_until_a_batch_fits():
    from accelerate.utils import find_executable_batch_size

    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=1024)
    def train(batch: int) -> float:
        tried.append(batch)
        return step(batch).item()

    with memfit.session(BUDGET, "ram", split="never", map="never"):
        assert train() == 2 * tried[-1] * WIDTH
    assert len(tried) > 1 and tried[-1] < 1024


def test_lightnings_finder_takes_it_for_an_error_of_memory(error):
    from lightning.pytorch.utilities.memory import is_oom_error, is_out_of_cpu_memory

    assert is_oom_error(error) and is_out_of_cpu_memory(error)


@pytest.mark.long
def test_the_trainer_finds_a_batch_that_fits(tmp_path):
    from transformers import Trainer, TrainingArguments

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).sin().square().mean()}

    arguments = TrainingArguments(
        str(tmp_path), per_device_train_batch_size=1024, auto_find_batch_size=True, max_steps=2, report_to=[],
        save_strategy="no", use_cpu=True,
    )  # fmt: skip
    data = [{"x": torch.ones(WIDTH)} for _ in range(2048)]
    with memfit.session(BUDGET // 2, "ram", split="never", map="never"):
        trainer = Trainer(Network(), arguments, train_dataset=data)
        trainer.train()
    assert trainer.state.global_step == 2 and trainer._train_batch_size < 1024


def test_people_read_only_what_memfit_says(error):
    assert "out of memory" not in str(error) and str(error) == error.what
    assert len(error.args) == 1 and error.args[0].startswith(error.what)


def test_it_can_be_sent_to_another_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is BudgetError and str(again) == str(error)
    assert again.required_bytes == error.required_bytes is not None and again.tensors == error.tensors
