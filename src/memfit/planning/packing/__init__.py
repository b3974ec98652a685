"""Packing: offsets for lifetimes known in advance, with the smallest footprint that can be found."""

from memfit.planning.packing.in_place import ELEMENTWISE, Grouped, group_in_place
from memfit.planning.packing.lifetimes import FREE, Lifetimes, lifetimes_of, repeat
from memfit.planning.packing.pack import Packing, pack

__all__ = [
    "ELEMENTWISE",
    "FREE",
    "Grouped",
    "Lifetimes",
    "Packing",
    "group_in_place",
    "lifetimes_of",
    "pack",
    "repeat",
]
