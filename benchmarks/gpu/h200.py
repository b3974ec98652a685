"""The H200 that was measured, as the simulator's virtual clock has it (docs/cuda-simulator.md says where from)."""

from __future__ import annotations

from memfit.machine import Link, Machine

_LINK = Link.of_bandwidth(55.0, 10.0)
MACHINE = Machine("simulated H200", _LINK, _LINK, both_factor=0.9)
HOST = {"call_ns": 1000, "op_ns": 4000, "session_op_ns": 5400, "reading_bytes_per_s": 1.11e9,
        "locking_bytes_per_s": 2**30 / 0.035, "planning": 1.0}  # fmt: skip
"""Of a `cuda_sim.simulator.Host`."""
FLOPS_EFFICIENCY = 0.68
"""Of its roofline: Llama's plain step took 202 ms there, and takes 217 ms with 0.6."""
BYTES = 141 * 10**9
TIER_BYTES = 96 << 30
"""Of its host's 126 GiB. No byte of it is touched where values are forgotten."""
