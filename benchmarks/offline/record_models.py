"""Traces of models too large for most machines, recorded on device meta and timed as a GPU would run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import nn
from torch.nn import functional

import memfit
from benchmarks.common.models import Decoder, Llama, UNet, VisionTransformer, resnet, vgg16
from benchmarks.common.paths import TRACES
from benchmarks.common.result import Result, Table
from memfit.planning.lifetimes import peak_live
from memfit.tracing.roofline import ACCELERATORS


@dataclass(frozen=True)
class Workload:
    """A model with what is said of it, and the shapes of its batch and of the labels."""

    about: str
    build: Callable[[], nn.Module]
    batch: tuple[int, ...]
    labels: tuple[int, ...]
    adam: bool = False
    dtype: torch.dtype = torch.float32


USUAL = {
    "vgg16": Workload("batch 64, 224 x 224", vgg16, (64, 3, 224, 224), (64,)),
    "resnet50": Workload("batch 64, 224 x 224", lambda: resnet((3, 4, 6, 3)), (64, 3, 224, 224), (64,)),
    "resnet152": Workload("batch 32, 224 x 224", lambda: resnet((3, 8, 36, 3)), (32, 3, 224, 224), (32,)),
    "gpt2_medium": Workload(
        "batch 8, 1024 tokens", lambda: Decoder(24, 1024, 16, 1024), (8, 1024), (8 * 1024,), adam=True
    ),
    "unet": Workload("batch 8, 512 x 512", lambda: UNet(64), (8, 3, 512, 512), (8, 512, 512)),
}
"""What is recorded."""
WORKLOADS = USUAL | {
    "vit_large": Workload(
        "batch 64, 224 x 224", lambda: VisionTransformer(24, 1024, 16, 196), (64, 3, 224, 224), (64,), adam=True
    ),
    "llama8b": Workload(
        "batch 4, 4096 tokens, bfloat16", lambda: Llama(32, 4096, 32, 8, 14336, 4096, 128256),
        (4, 4096), (4 * 4096,), adam=True, dtype=torch.bfloat16,
    ),
}  # fmt: skip
"""What can be, by name; the last one has the shape of Llama 3 8B."""
COLUMNS = ["model", "batch", "ops", "storages", "peak GB", "parameters MB", "step ms"]


def record(name: str, accelerator: str) -> tuple[memfit.Trace, int]:
    """Return the trace of one iteration, and the bytes of the parameters."""
    work = WORKLOADS[name]
    is_text = len(work.batch) == 2
    with torch.device("meta"):
        model, inputs = (
            work.build().to(work.dtype),
            torch.zeros(work.batch, dtype=torch.long if is_text else work.dtype),
        )
        labels = torch.zeros(work.labels, dtype=torch.long)
    parameters = list(model.parameters())
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(parameters, lr=1e-4) if work.adam else torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    )

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

    return memfit.record_meta(step, accelerator), sum(p.untyped_storage().nbytes() for p in parameters)


def row(name: str, trace: memfit.Trace, parameter_bytes: int) -> list[str]:
    """Return one line of the table; GB and MB are powers of ten."""
    peak_bytes = peak_live(trace)[0]
    step_ms = sum(op.duration_us for op in trace.ops) / 1000
    return [name, WORKLOADS[name].about, str(len(trace.ops)), str(len(trace.storages)), f"{peak_bytes / 1e9:.2f}",
            f"{parameter_bytes / 1e6:.1f}", f"{step_ms:.1f}"]  # fmt: skip


def run(
    folder: Annotated[Path, {"help": "for the traces (benchmarks/traces)"}] = TRACES,
    *,
    models: Annotated[Sequence[str], {"choices": list(WORKLOADS)}] = tuple(USUAL),
    accelerator: Annotated[str, {"choices": list(ACCELERATORS)}] = "h100",
    no_tf32: Annotated[bool, {"help": "products of float32 matrices not on tensor cores"}] = False,
) -> Iterator[Result]:
    """Record the models of the peers' table, or the ones named, and write the traces."""
    torch.set_float32_matmul_precision("highest" if no_tf32 else "high")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in (name for name in WORKLOADS if name in models):
        trace, parameter_bytes = record(name, accelerator)
        memfit.save_trace(trace, folder / f"{name}.json.gz")
        rows.append(row(name, trace, parameter_bytes))
    yield Result("", None, [Table(f"One training iteration on {trace.device}", COLUMNS, rows)])
