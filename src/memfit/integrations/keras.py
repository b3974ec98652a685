"""Keras on torch: a callback that adds a session's figures to the logs."""

from __future__ import annotations

from typing import Any

import keras

from memfit.errors import UsageError
from memfit.integrations import conflicts
from memfit.integrations.metrics import IN_A_BAR, Meter, meter_of
from memfit.running.session import Session, active_session


class MemfitCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Adds a session's figures to Keras' logs, and says what does not go together with a budget.

    Two are in the logs of each batch and so in the progress bar; all of them are in the logs of each epoch, and so in
    `History`. Callbacks that come after it in the list see them too.

        with memfit.session(budget="2GiB"):
            model.fit(x, y, callbacks=[MemfitCallback()])

    Arguments:
        session: The session to report on; None means the one that is active when training begins.

    Raises:
        UsageError: Keras has another backend than torch.
    """

    def __init__(self, session: Session | None = None) -> None:
        super().__init__()
        backend = keras.backend.backend()
        if backend != "torch":
            raise UsageError(
                f"Keras has the backend {backend}, whose memory memfit does not govern",
                why="a session limits what torch allocates",
                remedy='os.environ["KERAS_BACKEND"] = "torch", before `import keras`',
            )
        self._session = session
        self._of_batch: Meter | None = None
        self._of_epoch: Meter | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the session.

        Raises:
            UsageError: A setting does not work in a session, or the session that was passed is not active.
        """
        self._of_batch = meter_of(self._session, "MemfitCallback")
        self._of_epoch = meter_of(self._session, "MemfitCallback") if self._of_batch else None
        if self._of_batch is not None:
            compiled = [conflicts.COMPILED] if self.model.jit_compile else []
            conflicts.answer([*compiled, *conflicts.of_model(self.model)])

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the session that an iteration is over: Keras' optimizers do not. Add the figures of a progress bar."""
        if (session := active_session()) is not None:
            session.end_iteration()
        if self._of_batch is not None and logs is not None:
            figures = self._of_batch.read()
            logs.update({name: figures[name] for name in IN_A_BAR})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add all figures."""
        if self._of_epoch is not None and logs is not None:
            logs.update(self._of_epoch.read())
