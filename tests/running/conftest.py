"""Shared by the tests of the runtime: one thread of kernels, and sessions that start fast."""

import importlib
import os

import pytest

from running.helpers_training import others_hidden
from session_fixtures import few_visible_objects, one_thread, unmapped  # noqa: F401


def pytest_collection_modifyitems(items):
    """Leave out, under stress, what asserts on the very things that stress changes."""
    stress = os.environ.get("MEMFIT_STRESS")
    names = {"": (), "recompute": ("unstressed", "copied")}.get(stress or "", ("unstressed",))
    for item in items:
        for mark in filter(None, map(item.get_closest_marker, names)):
            item.add_marker(pytest.mark.skip(reason=f"stress changes {mark.args[0]}"))


@pytest.fixture(scope="session", autouse=True)
def dynamo():
    """The first optimizer imports it, which takes seconds that are not those of a test."""
    importlib.import_module("torch._dynamo")


@pytest.fixture
def on_its_own():
    """A session sees no tensor of other tests, and none is active when the test ends."""
    with others_hidden():
        yield
