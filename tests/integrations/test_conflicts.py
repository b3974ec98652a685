"""What is found on a model, and what is said of it, whichever library trains it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import memfit
from integrations.networks import BUDGET, network
from memfit.errors import UsageError
from memfit.integrations import conflicts


def hooked(*hooks: bool) -> torch.nn.Module:
    """A model with what accelerate leaves on modules: one hook, or several in one."""
    model = network()
    each = [SimpleNamespace(offload=offload) for offload in hooks]
    model[0]._hf_hook = each[0] if len(each) == 1 else SimpleNamespace(hooks=each)
    return model


def spread() -> torch.nn.Module:
    model = network()
    model[0].to("meta")
    return model


def of_numpy() -> torch.nn.Module:
    model = network()
    model[2].weight.data = torch.from_numpy(np.ones((64, 64), np.float32))
    return model


MODELS = {
    "plain": (network, []),
    "a hook that keeps devices apart": (lambda: hooked(False), []),
    "a hook that offloads": (lambda: hooked(True), [conflicts.OFFLOADED_WEIGHTS]),
    "a hook inside another": (lambda: hooked(False, True), [conflicts.OFFLOADED_WEIGHTS]),
    "two devices": (spread, [conflicts.SEVERAL_DEVICES]),
    "weights of an array": (of_numpy, [conflicts.OUTSIDE]),
    "compiled": (lambda: torch.compile(network(), backend="eager"), [conflicts.COMPILED]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_looked_at_in_a_session_alone(name):
    make, found = MODELS[name]
    model = make()
    assert list(conflicts.of_model(model)) == []
    with memfit.session(BUDGET, "ram"):
        assert list(conflicts.of_model(model)) == found


def test_a_model_may_be_missing():
    with memfit.session(BUDGET, "ram"):
        assert list(conflicts.of_model(None)) == []


@pytest.mark.parametrize("conflict", conflicts.CONFLICTS, ids=lambda conflict: conflict.what[:30])
def test_the_answer_says_what_why_and_what_to_do(conflict):
    def said() -> str:
        if conflict.works:
            with pytest.warns(UserWarning) as warnings:
                conflicts.answer([conflict])
            return str(warnings[0].message)
        with pytest.raises(UsageError) as raised:
            conflicts.answer([conflict])
        return str(raised.value)

    assert all(part in said() for part in (conflict.what, conflict.why, conflict.remedy))
