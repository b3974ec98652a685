"""Figures of the SmartPool and AutoSwap paper (arXiv 1903.06631), on its own traces."""
