"""Hugging Face's `Trainer`: a callback that adds a session's figures to what it logs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from memfit.integrations import conflicts
from memfit.integrations.conflicts import Conflict
from memfit.integrations.metrics import Meter, meter_of
from memfit.running.session import Session


class MemfitCallback(TrainerCallback):  # type: ignore[misc]
    """Adds a session's figures to each log of a `Trainer`, and says what does not go together with a budget.

    They are in `state.log_history`, in what is printed, and in TensorBoard, W&B and other reporters.

        with memfit.session(budget="60%"):
            Trainer(model, args, train_dataset=data, callbacks=[MemfitCallback()]).train()

    Arguments:
        session: The session to report on; None means the one that is active when training begins.
    """

    def __init__(self, session: Session | None = None) -> None:
        self._session = session
        self._meter: Meter | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Find the session.

        Raises:
            UsageError: A setting does not work in a session, or the session that was passed is not active.
        """
        self._meter = meter_of(self._session, "MemfitCallback")
        self._go_first(sys._getframe(1).f_locals.get("self"))
        if self._meter is not None:
            conflicts.answer([*_of_arguments(args), *conflicts.of_model(model)])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the figures."""
        if self._meter is None or logs is None:
            return
        figures = self._meter.read()
        history = state.log_history
        if history and history[-1].get("step") == state.global_step:  # the trainer has appended a copy of the logs
            history[-1].update(figures)
        logs.update(figures)

    def _go_first(self, handler: object) -> None:
        """Be asked before the reporters, which a trainer asks before its user's callbacks."""
        if isinstance(handler, CallbackHandler) and self in handler.callbacks:
            handler.callbacks.remove(self)
            handler.callbacks.insert(0, self)


def _of_arguments(args: Any) -> Iterator[Conflict]:
    if args.deepspeed:
        yield conflicts.DEEPSPEED
    if "paged" in str(getattr(args.optim, "value", args.optim)):
        yield conflicts.PAGED_OPTIMIZER
    if args.torch_compile:
        yield conflicts.COMPILED
    if _has(args, "fsdp_config", "cpu_offload"):
        yield conflicts.FSDP_OFFLOAD
    if _has(args, "activation_checkpointing_kwargs", "offload") or _has(
        args, "gradient_checkpointing_kwargs", "offload"
    ):
        yield conflicts.ACTIVATION_OFFLOAD


def _has(args: Any, name: str, key: str) -> bool:
    options = getattr(args, name, None)
    return isinstance(options, dict) and bool(options.get(key))
