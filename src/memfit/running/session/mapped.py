"""Storages that ops see where they wait, by the user's wish."""

from __future__ import annotations

from typing import TypeVar

import torch

from memfit.errors import UsageError
from memfit.running import engine
from memfit.running.engine import patching
from memfit.running.session.api import active_session

Mapped = TypeVar("Mapped", bound=torch.Tensor)


def map(tensor: Mapped) -> Mapped:
    """Let ops see a tensor's bytes where they wait, in the tier: for a table of which each op uses a few rows.

    From now on none of its bytes come into the arena as a whole: the rows that an op touches do, into page frames, and
    stay there until others need the frames. On a ram tier ops use the tier's own memory, a GPU's over its link.

    Arguments:
        tensor: A tensor of the active session's device, made in the session or before it.

    Returns:
        The same tensor.

    Raises:
        UsageError: No session is active, it maps nothing, or the tensor is none of its.
        TierError: The tensor's bytes cannot be written to the tier.
    """
    if active_session() is None:
        raise UsageError("no memfit session is active", remedy="call memfit.map(tensor) inside its block")
    if not patching.has_storage(tensor) or not engine.load().map_storage(tensor):
        raise UsageError(
            "this tensor cannot be mapped",
            why="the session was begun with map='never', or the tensor is not dense or not on the session's device",
            remedy='begin the session with map="auto", and pass a tensor that it governs',
        )
    return tensor
