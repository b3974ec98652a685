"""Trains Llama on the simulated H200 as the H200 was measured; prints what its steps took as JSON.

It runs with the memfit of then as well as with today's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from transformers.models.llama import modeling_llama  # noqa: F401  (torch's compiler does not like the simulator's functions)

from benchmarks.common.result import Row
from benchmarks.gpu.models import SPECS
from benchmarks.gpu.training import Training
from benchmarks.gpu.virtual import begin
from memfit.running import engine
from memfit.running.session import Session

_WORKSPACE_BYTES = 32 << 20
# An allocation with its op took 6.5 us more in a session there, and one thread populated what was locked.
_OF_THEN = {"session_op_ns": 6500, "locking_bytes_per_s": 2**30 / 0.284}


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    module, since_then = engine.load(), "trust_registered_kernels"
    if not hasattr(module, since_then):
        setattr(module, since_then, lambda _: None)
    gpu = begin(**_OF_THEN)
    with gpu.workspaces(_WORKSPACE_BYTES):
        print(json.dumps(trained(gpu, request)))


def trained(gpu: Any, request: dict[str, Any]) -> Row:
    """Train plainly, or from the building of the model on within the budget, and while plans take their time."""
    if request["budget_bytes"] is None:
        return steps_of(request["steps"]) | {"peak_bytes": torch.cuda.max_memory_allocated()}
    gpu.in_session(True)
    with Session(request["budget_bytes"], "ram", device="cuda") as session:
        return steps_of(request["steps"], session)


def steps_of(count: int, session: Session | None = None) -> Row:
    """Return each step's milliseconds, and at its end how many plans had come into force, and what had left so far."""
    training, plans, bytes_out = Training(SPECS["llama"], torch.device("cuda", 0)), [], []
    for _ in range(count):
        training.step()
        plans.append(0 if session is None else session.stats.plans)
        bytes_out.append(0 if session is None else session.stats.bytes_out)
    return {"step_ms": [each["step"] for each in training.times_ms()], "plans": plans, "bytes_out": bytes_out}


if __name__ == "__main__":
    main()
