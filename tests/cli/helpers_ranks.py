"""Scripts of several ranks, started by torchrun or one by one."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

DATA_PARALLEL = """\
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(96, 96), nn.Tanh()))), gradient_as_bucket_view=True
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(rank)
for step in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = model(torch.randn(256, 96)).square().mean()
    loss.backward()
    optimizer.step()
    # THEN
print(f"rank {rank}: {loss.item()}\\n", end="", flush=True)  # whole: the other rank prints there, too
dist.destroy_process_group()
time.sleep(0.2)
"""
"""Trains for as many steps as it is told.

Gloo's threads may still want the GIL, to let go of tensors. The interpreter aborts if it ends meanwhile ("terminate
called without an active exception"), with memfit or without.
"""


def lines(done: subprocess.CompletedProcess[str], part: str) -> list[str]:
    """The lines on standard error that have `part`."""
    return [line for line in done.stderr.splitlines() if part in line]


def clean(environment: dict[str, str]) -> dict[str, str]:
    """An environment in which nobody is a rank."""
    return {name: value for name, value in environment.items() if not re.search("RANK|WORLD_SIZE|TORCHELASTIC", name)}


def torchrun(*words: object, cwd: Path, ranks: int = 2, **environment: str) -> subprocess.CompletedProcess[str]:
    """What `torchrun ... WORDS` did; its threads are few, so that ranks do not slow each other down."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.run([*command, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=120,
                          env=clean(dict(os.environ)) | {"OMP_NUM_THREADS": "1"} | environment)  # fmt: skip


def one_by_one(*words: object, cwd: Path, ranks: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """What the ranks did, each a process that somebody has started with the variables of its rank."""
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, words)]
    started = [
        subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env=clean(dict(os.environ)) | shared | {"RANK": str(rank)})
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        ended = [(process, process.communicate(timeout=60)) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(command, process.returncode, *texts) for process, texts in ended]
