"""Shared by the tests of trainers: Keras on torch, and no session that outlives its test."""

import os

import pytest

import memfit
from session_fixtures import few_visible_objects, one_thread, unmapped  # noqa: F401

os.environ["KERAS_BACKEND"] = "torch"  # Keras reads it when it is imported


@pytest.fixture(autouse=True)
def no_session_is_left():
    yield
    assert memfit.active_session() is None
