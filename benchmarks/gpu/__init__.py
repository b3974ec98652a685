"""Benchmarks on one GPU: `python -m benchmarks gpu` from the root of the checkout. See docs/gpu-benchmarks.md.

`runner` runs parts; a part is a list of cells (`bench`); each cell runs in a process of its own (`cells`), so that one
which hangs or crashes takes nothing else along. What a cell does is a function of its request, in `work`, `overhead`,
`largest` and `probe_*`.
"""
