"""Fixtures of tests that run sessions: one thread of kernels, and sessions that start fast."""

import gc

import pytest
import torch

from memfit.running.session import api


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def few_visible_objects():
    """A session looks at every object the collector tracks; what was imported holds no tensor of a test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def unmapped(request, monkeypatch):
    """In a test that is marked so, an op that needs more than the budget is an error."""
    if request.node.get_closest_marker("unmapped"):
        for function in (api.session, api.Session.__init__):
            monkeypatch.setitem(function.__kwdefaults__, "map", "never")
