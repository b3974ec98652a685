"""Shared by the tests of trainers: one thread of kernels, sessions that start fast, and Keras on torch."""

import gc
import os

import pytest
import torch

import memfit

os.environ["KERAS_BACKEND"] = "torch"  # Keras reads it when it is imported


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    assert memfit.active_session() is None


@pytest.fixture(autouse=True, scope="module")
def few_visible_objects():
    """A session looks at every object the collector tracks; what was imported holds no tensor of a test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
