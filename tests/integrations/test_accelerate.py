"""A loop of Accelerate's in a session: bits, figures in its trackers, errors, and settings that conflict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import memfit
from integrations.networks import BUDGET, batches, network, state_of
from libraries import importing
from memfit.integrations import conflicts
from memfit.integrations.metrics import CHANGES, LEVELS
from running.plainly import as_plainly

accelerate = importing("accelerate")
memfit_accelerate = importing("memfit.integrations.accelerate", "accelerate")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def tracker_of(rows: list[dict[str, Any]]) -> Any:
    class Tracker(accelerate.tracking.GeneralTracker):
        name, requires_logging_directory = "list", False

        @property
        def tracker(self) -> list[dict[str, Any]]:
            return rows

        @accelerate.tracking.on_main_process
        def store_init_configuration(self, values: dict[str, Any]) -> None:
            pass

        @accelerate.tracking.on_main_process
        def log(self, values: dict[str, Any], step: int | None = None, **options: Any) -> None:
            rows.append(values | {"step": step})

    return Tracker()


def train(tracker: Any = None, fails_at: int = -1) -> tuple[torch.nn.Module, Any]:
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=tracker)
    accelerator.init_trackers("")
    model, loader = network(), DataLoader(TensorDataset(batches(16)), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    reporter = memfit_accelerate.MemfitReporter(accelerator) if tracker else None
    for step, (batch,) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step == fails_at:
            raise ZeroDivisionError("the loss of a step")
        if reporter is not None:
            reporter.log({"loss": loss.item()}, step=step)
    return model, optimizer


def test_training_is_the_plain_run_s_and_trackers_have_the_figures():
    rows: list[dict[str, Any]] = []
    tracker = tracker_of(rows)
    session = as_plainly(lambda: state_of(*train(tracker if memfit.active_session() else None)), BUDGET, "ram")
    assert session.stats.evictions > 0
    assert [row["step"] for row in rows] == list(range(16))
    assert all(row.keys() >= {"loss", *LEVELS, *CHANGES} for row in rows)
    assert 0 < sum(row["memfit/out_mib"] for row in rows) <= session.stats.bytes_out / (1 << 20)


def test_the_session_is_closed_when_training_raises():
    with pytest.raises(ZeroDivisionError), memfit.session(BUDGET, "ram"):
        train(tracker_of([]), fails_at=3)
    assert memfit.active_session() is None


def test_a_reporter_without_a_session_says_so_and_logs_the_loop_s_own_values():
    rows: list[dict[str, Any]] = []
    tracker = tracker_of(rows)
    with pytest.warns(UserWarning, match="MemfitReporter has nothing to report"):
        train(tracker)
    assert [row.keys() for row in rows] == [{"loss", "step"}] * 16


def test_weights_that_accelerate_offloads_are_an_error_since_they_get_no_gradients():
    model = network()
    accelerate.cpu_offload(model, execution_device="cpu")
    model(batches(1)).sum().backward()
    assert all(weight.grad is None for weight in model.parameters())  # as the error says, without memfit too
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator._models.append(model)
    with pytest.raises(memfit.MemfitError, match="get no gradients"), memfit.session(BUDGET, "ram"):
        memfit_accelerate.MemfitReporter(accelerator)


def test_settings_of_the_accelerator_that_conflict_are_answered_in_a_sentence(monkeypatch):
    accelerator = accelerate.Accelerator(cpu=True)
    with memfit.session(BUDGET, "ram"):
        monkeypatch.setattr(accelerator.state.dynamo_plugin, "backend", accelerate.utils.DynamoBackend.INDUCTOR)
        with pytest.warns(UserWarning, match=conflicts.COMPILED.what):
            memfit_accelerate.MemfitReporter(accelerator)
        monkeypatch.setattr(type(accelerator), "distributed_type", accelerate.DistributedType.DEEPSPEED)
        with pytest.raises(memfit.MemfitError, match=conflicts.DEEPSPEED.what):
            memfit_accelerate.MemfitReporter(accelerator)
