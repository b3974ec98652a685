"""Lightning's `Trainer` in a session: bits, figures, errors, and settings that conflict."""

from __future__ import annotations

import csv
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import memfit
from integrations.networks import BUDGET, batches, network, state_of
from libraries import importing
from memfit.integrations import conflicts
from memfit.integrations.metrics import CHANGES, IN_A_BAR, LEVELS
from running.plainly import as_plainly

lightning = importing("lightning.pytorch")
memfit_lightning = importing("memfit.integrations.lightning", "lightning")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]


def lightning_module(fails_at: int = -1) -> Any:
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            if index == fails_at:
                raise ZeroDivisionError("the loss of step 3")
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    return Module()


def loader() -> DataLoader:
    return DataLoader(TensorDataset(batches(8)), batch_size=32)


def trainer(folder: Any, **options: Any) -> Any:
    options = {"logger": False, "enable_checkpointing": False, "max_epochs": 1} | options
    return lightning.Trainer(
        accelerator="cpu", default_root_dir=folder, enable_model_summary=False, enable_progress_bar=False, **options
    )


def test_training_is_the_plain_run_s_and_loggers_and_the_bar_have_the_figures(tmp_path):
    trainers = []

    def program() -> list[object]:
        callbacks = [memfit_lightning.MemfitCallback()] if memfit.active_session() else []
        module = lightning_module()
        logger = lightning.loggers.CSVLogger(tmp_path) if callbacks else False
        one = trainer(tmp_path, callbacks=callbacks, logger=logger, log_every_n_steps=2)
        one.fit(module, loader())
        trainers.append(one)
        return state_of(module, one.optimizers[0])

    session = as_plainly(program, BUDGET, "ram")
    assert session.stats.evictions > 0
    one = trainers[-1]
    assert {*IN_A_BAR} <= one.progress_bar_metrics.keys() and {*IN_A_BAR} <= one.callback_metrics.keys()
    with open(one.logger.experiment.metrics_file_path) as file:
        rows = [row for row in csv.DictReader(file) if row["memfit/out_mib"]]
    assert [row["step"] for row in rows] == ["1", "3", "5", "7"]  # as the module's own `log` has them
    assert all(row[name] for row in rows for name in LEVELS + CHANGES)
    assert sum(float(row["memfit/out_mib"]) for row in rows) > 0


def test_the_session_is_closed_when_training_raises(tmp_path):
    callback, module = memfit_lightning.MemfitCallback(), lightning_module(fails_at=3)
    with pytest.raises(ZeroDivisionError), memfit.session(BUDGET, "ram"):
        trainer(tmp_path, callbacks=[callback]).fit(module, loader())
    assert memfit.active_session() is None
    assert all(torch.isfinite(weight).all() for weight in module.parameters())
    with memfit.session(BUDGET, "ram"):  # the same callback reports on the next
        trainer(tmp_path, callbacks=[callback]).fit(lightning_module(), loader())


def test_a_callback_without_a_session_says_so_and_training_goes_on(tmp_path):
    one = trainer(tmp_path, callbacks=[memfit_lightning.MemfitCallback()], max_steps=1)
    with pytest.warns(UserWarning, match="MemfitCallback has nothing to report"):
        one.fit(lightning_module(), loader())
    assert one.global_step == 1


@pytest.mark.parametrize(
    ("strategy", "callbacks", "conflict"),
    [
        (lambda of: object.__new__(of.DeepSpeedStrategy), [], conflicts.DEEPSPEED),  # the library is not there
        (lambda of: of.FSDPStrategy(cpu_offload=True), [], conflicts.FSDP_OFFLOAD),
    ],
    ids=["deepspeed", "fsdp"],
)
def test_a_setting_that_conflicts_is_answered_in_a_sentence(strategy, callbacks, conflict):
    its = SimpleNamespace(strategy=strategy(lightning.strategies), callbacks=callbacks)
    with memfit.session(None):
        if conflict.works:
            with pytest.warns(UserWarning) as said:
                memfit_lightning.MemfitCallback().setup(its, lightning_module(), "fit")
            assert [conflict.what in str(warning.message) for warning in said] == [True]
        else:
            with pytest.raises(memfit.MemfitError, match=conflict.what):
                memfit_lightning.MemfitCallback().setup(its, lightning_module(), "fit")


def test_a_compiled_module_is_answered_in_a_sentence():
    its, module = SimpleNamespace(strategy=None, callbacks=[]), lightning_module()
    module.compile(backend="eager")
    with memfit.session(None), pytest.warns(UserWarning, match=conflicts.COMPILED.what):
        memfit_lightning.MemfitCallback().setup(its, module, "fit")
