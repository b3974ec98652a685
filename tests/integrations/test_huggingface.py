"""Hugging Face's `Trainer` in a session: bits, figures, errors, and settings that conflict."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import memfit
from integrations.networks import BUDGET, WIDTH, batches, network, state_of
from libraries import importing
from memfit.integrations import conflicts
from memfit.integrations.metrics import CHANGES, LEVELS
from running.plainly import as_plainly

transformers = importing("transformers")
memfit_huggingface = importing("memfit.integrations.huggingface", "transformers")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]
FIGURES = {*LEVELS, *CHANGES}


class Model(torch.nn.Module):
    def __init__(self, fails_after: int = 10**9) -> None:
        super().__init__()
        self.layers = network()
        self.calls, self.fails_after = 0, fails_after

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        if self.calls > self.fails_after:
            raise ZeroDivisionError("the loss of step 3")
        return {"loss": self.layers(rows).square().mean()}


def reporter_of(seen: list[dict[str, Any]]) -> Any:
    """Return a callback that stands before the user's, as TensorBoard does."""

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    return Reporter()


def trainer(folder: Any, model: torch.nn.Module | None = None, steps: int = 8, callbacks: Any = (),
            rows: int = 32, **options: Any) -> Any:  # fmt: skip
    options = {"save_strategy": "no", "report_to": [], "disable_tqdm": True} | options
    arguments = transformers.TrainingArguments(
        str(folder), use_cpu=True, max_steps=steps, per_device_train_batch_size=rows, logging_steps=2, **options
    )
    data = [{"rows": row} for row in batches(8)]
    return transformers.Trainer(model or Model(), arguments, train_dataset=data, callbacks=list(callbacks))


def test_training_is_the_plain_run_s_and_every_log_has_the_figures(tmp_path, capsys):
    trainers = []

    def program() -> list[object]:
        logs: list[dict[str, Any]] = []
        its = [reporter_of(logs), memfit_huggingface.MemfitCallback()] if memfit.active_session() else []
        one = trainer(tmp_path, callbacks=its)
        one.train()
        trainers.append((one, logs))
        return [*state_of(one.model, one.optimizer), [log.get("loss") for log in one.state.log_history]]

    session = as_plainly(program, BUDGET, "ram")
    assert session.stats.evictions > 0
    (plain, _), (one, logs) = trainers
    assert not any(name in log for log in plain.state.log_history for name in FIGURES)
    assert len(logs) == len(one.state.log_history) == 5
    assert all(log.keys() >= FIGURES for log in [*logs, *one.state.log_history])
    assert sum(log["memfit/out_mib"] for log in logs) > 0
    assert capsys.readouterr().out.count("memfit/arena_peak_mib") == 5


def test_the_session_is_closed_when_training_raises(tmp_path):
    one = trainer(tmp_path, Model(fails_after=3), callbacks=[memfit_huggingface.MemfitCallback()])
    with pytest.raises(ZeroDivisionError), memfit.session(BUDGET, "ram"):
        one.train()
    assert memfit.active_session() is None
    assert all(torch.isfinite(weight).all() for weight in one.model.parameters())
    with memfit.session(BUDGET, "ram"):
        Model()(torch.ones(1, WIDTH))


def test_a_callback_without_a_session_says_so_and_training_goes_on(tmp_path):
    one = trainer(tmp_path, callbacks=[memfit_huggingface.MemfitCallback()], steps=1)
    with pytest.warns(UserWarning, match="MemfitCallback has nothing to report"):
        one.train()
    assert one.state.global_step == 1


CONFLICTS = [
    ({"deepspeed": "zero3.json"}, conflicts.DEEPSPEED),
    ({"optim": "paged_adamw_8bit"}, conflicts.PAGED_OPTIMIZER),
    ({"torch_compile": True}, conflicts.COMPILED),
    ({"fsdp_config": {"cpu_offload": True}}, conflicts.FSDP_OFFLOAD),
    ({"activation_checkpointing_kwargs": {"offload": True}}, conflicts.ACTIVATION_OFFLOAD),
    ({"gradient_checkpointing_kwargs": {"offload": True}}, conflicts.ACTIVATION_OFFLOAD),
]


@pytest.mark.parametrize(
    ("options", "conflict"), CONFLICTS, ids=lambda value: "-".join(value) if isinstance(value, dict) else ""
)
def test_a_setting_that_conflicts_is_answered_in_a_sentence(tmp_path, recwarn, options, conflict):
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True)
    for name, value in options.items():  # some of them want a library that is not there
        assert hasattr(arguments, name)
        setattr(arguments, name, value)

    def begin() -> None:
        memfit_huggingface.MemfitCallback().on_train_begin(arguments, None, None, model=Model())

    begin()  # without a session nothing conflicts
    assert not [warning for warning in recwarn if conflict.what in str(warning.message)]
    with memfit.session(None):
        if conflict.works:
            with pytest.warns(UserWarning, match="memfit: ") as said:
                begin()
            assert [conflict.what in str(warning.message) for warning in said] == [True]
        else:
            with pytest.raises(memfit.MemfitError) as raised:
                begin()
            assert raised.value.what == conflict.what
