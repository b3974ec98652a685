"""Shared by the tests of the runtime: one thread of kernels, and sessions that start fast."""

import gc
import os

import pytest
import torch
import torch._dynamo  # noqa: F401  (optimizers import it, at 5 s)

import memfit.running.session  # noqa: F401
from running.helpers_training import others_hidden


def pytest_collection_modifyitems(items):
    """Leave out, under stress, what asserts on the very things that stress changes."""
    stress = os.environ.get("MEMFIT_STRESS")
    names = {"": (), "recompute": ("unstressed", "copied")}.get(stress or "", ("unstressed",))
    for item in items:
        for mark in filter(None, map(item.get_closest_marker, names)):
            item.add_marker(pytest.mark.skip(reason=f"stress changes {mark.args[0]}"))


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


@pytest.fixture
def on_its_own():
    """A session sees no tensor of other tests, and none is active when the test ends."""
    with others_hidden():
        yield
