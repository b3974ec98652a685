"""What memfit costs and saves, measured: `python -m benchmarks --list`. See docs/benchmarks.md.

`offline` plans, packs and replays traces; `cpu` and `gpu` train; `paper` replays the traces of SmartPool's and
AutoSwap's authors. Each module's `run` yields results (`common.result`), which `__main__` prints and writes to
`results/`; its parameters are the benchmark's options (`common.options`).
"""

import os

# A figure with the plan of an earlier run in it is another figure.
os.environ.setdefault("MEMFIT_PLAN_CACHE", "off")
