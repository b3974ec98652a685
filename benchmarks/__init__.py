"""What memfit costs and saves, measured: `python -m benchmarks --list`. See docs/benchmarks.md.

`offline` plans, packs and replays traces; `cpu` and `gpu` train; `paper` reproduces published tables. Each module's
`run` yields results (`common.result`), which `__main__` prints and writes to `results/`.
"""
