"""Runs planners, allocators and policies on one input, and gives the finished figures that `reporting` shows."""
