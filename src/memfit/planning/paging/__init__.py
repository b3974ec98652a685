"""Paging: storages whose chunks come in when an op touches them."""

from memfit.planning.paging.classes import AccessClass, Touch, access_class, expected_chunks
from memfit.planning.paging.faults import Leaves, Paged, Pager
from memfit.planning.paging.zero_copy import zero_copy

__all__ = ["AccessClass", "Leaves", "Paged", "Pager", "Touch", "access_class", "expected_chunks", "zero_copy"]
