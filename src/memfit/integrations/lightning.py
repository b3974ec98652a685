"""Lightning's `Trainer`: a callback that logs a session's figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch.callbacks import Callback

from memfit.integrations import conflicts
from memfit.integrations.conflicts import Conflict
from memfit.integrations.metrics import IN_A_BAR, Meter, meter_of
from memfit.running.session import Session


class MemfitCallback(Callback):  # type: ignore[misc]
    """Logs a session's figures, and says what does not go together with a budget.

    All of them go to the trainer's loggers every `log_every_n_steps`; two are in the progress bar, and in
    `trainer.callback_metrics`.

        with memfit.session(budget="60%"):
            Trainer(callbacks=[MemfitCallback()]).fit(module, loader)

    Arguments:
        session: The session to report on; None means the one that is active when training begins.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._logged: Meter | None = None
        self._shown: Meter | None = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the session.

        Raises:
            UsageError: A setting does not work in a session, or the session that was passed is not active.
        """
        if stage != "fit":
            return
        self._logged = meter_of(self._session, "MemfitCallback")
        self._shown = meter_of(self._session, "MemfitCallback") if self._logged else None
        if self._logged is not None:
            conflicts.answer([*_of_trainer(trainer), *conflicts.of_model(pl_module)])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the figures."""
        if self._logged is None or self._shown is None:
            return
        shown = self._shown.read()
        pl_module.log_dict({name: shown[name] for name in IN_A_BAR}, prog_bar=True, logger=False)
        if trainer._logger_connector.should_update_logs:  # as Lightning's own callbacks ask
            figures = self._logged.read()
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def _of_trainer(trainer: Any) -> Iterator[Conflict]:
    if _is_a(trainer.strategy, "DeepSpeedStrategy"):
        yield conflicts.DEEPSPEED
    offload = trainer.strategy.cpu_offload if _is_a(trainer.strategy, "FSDPStrategy") else None
    if offload is not None and offload.offload_params:
        yield conflicts.FSDP_OFFLOAD


def _is_a(thing: object, name: str) -> bool:
    """Return whether it is of a class of that name: the package pytorch_lightning has the same classes once more."""
    return any(base.__name__ == name for base in type(thing).__mro__)
