"""What plain runs of the decoders will take at their batches, recorded on meta.

No GPU is needed. Weights under autocast are recorded as bfloat16 here, so such a model's own bytes are understated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from typing import Annotated, Any

import torch
from torch.nn import functional

import memfit
from benchmarks.common.result import Result, Table, gib
from benchmarks.gpu.models import SPECS, Spec, tiny
from benchmarks.gpu.training import Training
from memfit.planning.lifetimes import peak_live
from memfit.running.engine.patching import replaced


def fused_attention(query: Any, key: Any, value: Any, *_: Any, enable_gqa: bool = False, **__: Any) -> torch.Tensor:
    """Attend as a GPU would: on meta torch takes the kernel that keeps all scores."""
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    attended: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, True)[0]
    return attended


def unpacked() -> AbstractContextManager[None]:
    """Keep transformers from looking into the positions for packed texts: on meta there is nothing to look at."""
    with suppress(ImportError):
        from transformers import masking_utils

        if hasattr(masking_utils, "find_packed_sequence_indices"):
            return replaced(masking_utils, "find_packed_sequence_indices", lambda *_, **__: None)
    return nullcontext()


def peak_bytes(spec: Spec) -> tuple[int, int, float]:
    """Return the peak, the parameters' bytes and the roofline's milliseconds of one step."""
    with replaced(functional, "scaled_dot_product_attention", fused_attention), unpacked():
        training = Training(replace(spec, half=True), torch.device("meta"))
        trace = memfit.record_meta(training.step, "h200")
    parameters = sum(p.nbytes for p in training.model.parameters())
    return peak_live(trace)[0], parameters, sum(op.duration_us for op in trace.ops) / 1000


def run(
    *,
    models: Annotated[Sequence[str], {"choices": list(SPECS)}] = tuple(SPECS),
    batch: Annotated[int | None, {"help": "instead of each model's own"}] = None,
    quick: Annotated[bool, {"help": "tiny models"}] = False,
) -> Iterator[Result]:
    """Estimate each model."""
    rows = []
    for name in models:
        spec = tiny(SPECS[name]) if quick else SPECS[name]
        spec = replace(spec, batch=batch or spec.batch)
        peak, parameters, ms = peak_bytes(spec)
        rows.append([name, spec.about, str(spec.batch), gib(parameters), gib(peak), f"{ms:.0f}"])
    columns = ["model", "of", "batch", "weights GiB", "peak GiB", "step ms"]
    yield Result("", None, [Table("Foreseen, plain", columns, rows)])
