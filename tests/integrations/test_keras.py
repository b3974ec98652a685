"""Keras on torch in a session: bits, figures, errors, and settings that conflict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import memfit
from integrations.networks import BUDGET, WIDTH, batches
from libraries import importing
from memfit.integrations import conflicts
from memfit.integrations.metrics import CHANGES, IN_A_BAR, LEVELS
from running.plainly import as_plainly

keras = importing("keras")
memfit_keras = importing("memfit.integrations.keras", "keras")

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def network(**options: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(WIDTH, activation="gelu") for _ in range(6)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    model.compile(optimizer="adam", loss="mse", **options)
    return model


def fit(model: Any, *callbacks: Any, epochs: int = 2, verbose: int = 0) -> Any:
    rows = batches(8).numpy().copy()
    return model.fit(
        rows, rows, batch_size=32, epochs=epochs, verbose=verbose, callbacks=list(callbacks), shuffle=False
    )


def state_of(model: Any) -> list[Any]:
    return [variable.value.detach().clone() for variable in [*model.weights, *model.optimizer.variables]]


def recorder_of(seen: list[dict[str, float]]) -> Any:
    """Return a callback that keeps what callbacks after memfit's see."""
    return keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))


def test_training_is_the_plain_run_s_and_history_and_the_bar_have_the_figures(capsys):
    logs: list[dict[str, float]] = []
    histories: list[Any] = []

    def program() -> list[Any]:
        model = network()
        its = [memfit_keras.MemfitCallback(), recorder_of(logs)] if memfit.active_session() else []
        histories.append(fit(model, *its, verbose=1 if its else 0).history)
        return [*state_of(model), histories[-1]["loss"]]

    session = as_plainly(program, BUDGET, "ram")
    assert session.stats.evictions > 0
    assert histories[0].keys() == {"loss"} and histories[1].keys() == {"loss", *LEVELS, *CHANGES}
    assert 0 < sum(histories[1]["memfit/out_mib"]) <= session.stats.bytes_out / (1 << 20)
    assert len(logs) == 16 and all(log.keys() == {"loss", *IN_A_BAR} for log in logs)
    assert "memfit/arena_peak_mib: 0.3" in capsys.readouterr().out


def test_each_batch_is_an_iteration_so_that_a_share_holds_from_the_third_on():
    with memfit.session("70%", "ram") as session:
        fit(network(), memfit_keras.MemfitCallback(), epochs=1)
    assert session.stats.iterations == 8 and session.why_no_limit == "" and session.stats.evictions > 0


def test_the_session_is_closed_when_training_raises():
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise ZeroDivisionError("in a callback")

    model = network()
    with pytest.raises(ZeroDivisionError), memfit.session(BUDGET, "ram"):
        fit(model, memfit_keras.MemfitCallback(), Fails())
    assert memfit.active_session() is None
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_a_callback_without_a_session_says_so_and_training_goes_on():
    with pytest.warns(UserWarning, match="MemfitCallback has nothing to report"):
        history = fit(network(), memfit_keras.MemfitCallback(), epochs=1).history
    assert history.keys() == {"loss"}


def test_another_backend_is_an_error_that_says_how_to_choose_torch(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(memfit.MemfitError, match='backend jax(.|\n)*"KERAS_BACKEND"'):
        memfit_keras.MemfitCallback()


def test_a_compiled_model_is_answered_in_a_sentence():
    callback = memfit_keras.MemfitCallback()
    callback.set_model(network(jit_compile=True))
    with memfit.session(None), pytest.warns(UserWarning, match=conflicts.COMPILED.what):
        callback.on_train_begin()
