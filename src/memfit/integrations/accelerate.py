"""Accelerate: a reporter that logs a session's figures through an `Accelerator`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType, DynamoBackend

from memfit.integrations import conflicts
from memfit.integrations.conflicts import Conflict
from memfit.integrations.metrics import meter_of
from memfit.running.session import Session


class MemfitReporter:
    """Logs a session's figures beside a loop's own, and says what does not go together with a budget.

        with memfit.session(budget="60%"):
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            reporter = MemfitReporter(accelerator)
            for step, batch in enumerate(loader):
                ...
                reporter.log({"loss": loss.item()}, step=step)

    Arguments:
        accelerator: The accelerator, when it has prepared what is trained.
        session: The session to report on; None means the active one.

    Raises:
        UsageError: A setting does not work in a session, or the session that was passed is not active.
    """

    def __init__(self, accelerator: Accelerator, session: Session | None = None) -> None:
        self._accelerator = accelerator
        self._meter = meter_of(session, "MemfitReporter")
        if self._meter is not None:
            conflicts.answer(_of_accelerator(accelerator))

    def log(self, values: Mapping[str, Any] | None = None, step: int | None = None, **options: Any) -> dict[str, Any]:
        """Log `values` and the figures by `accelerator.log`, which sends them to its trackers.

        Arguments:
            values: The loop's own values.
            step: The step that they are of.
            options: Whatever else `accelerator.log` takes.

        Returns:
            All that was logged.
        """
        logged = {**(values or {}), **(self._meter.read() if self._meter is not None else {})}
        self._accelerator.log(logged, step=step, **options)
        return logged


def _of_accelerator(accelerator: Any) -> Iterator[Conflict]:
    state = accelerator.state
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        yield conflicts.DEEPSPEED
    offload = getattr(getattr(state, "fsdp_plugin", None), "cpu_offload", None)
    if getattr(offload, "offload_params", offload):
        yield conflicts.FSDP_OFFLOAD
    plugin = getattr(state, "dynamo_plugin", None)
    if plugin is not None and plugin.backend != DynamoBackend.NO:
        yield conflicts.COMPILED
    for model in accelerator._models:
        yield from conflicts.of_model(model)
