"""SmartPool and AutoSwap (arXiv 1903.06631) on their authors' own traces, beside the authors' figures and ours."""
