"""Planners, packing and allocators on recorded or generated traces: nothing is trained."""
