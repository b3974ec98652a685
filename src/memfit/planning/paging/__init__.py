"""Paging: storages whose chunks come in when an op touches them."""

from memfit.planning.paging.choice import Frames, choose_maps
from memfit.planning.paging.classes import AccessClass, Touch, access_class, expected_chunks
from memfit.planning.paging.faults import Leaves, Paged, Pager
from memfit.planning.paging.mapped import with_maps
from memfit.planning.paging.zero_copy import zero_copy

__all__ = [
    "AccessClass",
    "Frames",
    "Leaves",
    "Paged",
    "Pager",
    "Touch",
    "access_class",
    "choose_maps",
    "expected_chunks",
    "with_maps",
    "zero_copy",
]
