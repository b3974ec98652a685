"""Measured training runs on the CPU."""
