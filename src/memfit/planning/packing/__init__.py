"""Packing: offsets for lifetimes known in advance, with the smallest footprint that can be found."""

from memfit.planning.packing.lifetimes import FREE, NOBODY, Lifetimes, joined, lifetimes_of, repeat
from memfit.planning.packing.pack import Packing, pack

__all__ = [
    "FREE",
    "NOBODY",
    "Lifetimes",
    "Packing",
    "joined",
    "lifetimes_of",
    "pack",
    "repeat",
]
