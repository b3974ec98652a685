"""Ops whose working set is larger than the budget, on mapped storages: their time, by mechanism, and their bits.

The same call in the GPU's memory, then in a session that has no room for it: where its bytes wait in page-locked memory
(zero copy), and in managed memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

import memfit
from benchmarks.common.result import GIB, Row, Table
from benchmarks.gpu.accelerator import PeakSampler, ms_between, now, prepare, release, synchronize, tier_of
from benchmarks.gpu.bench import Bench, measured
from benchmarks.gpu.cells import Note, Request
from benchmarks.gpu.training import fingerprint
from memfit.running import engine

MECHANISMS = ("zero-copy", "managed")
CALLS = 5
_LARGE, _QUICK = 1 << 28, 1 << 20  # elements of an operand
_SHARE = 0.25  # of one operand's bytes, which is the budget beyond what libraries keep
_LIBRARIES, _LIBRARIES_QUICK = 256 << 20, 4 << 20
_CALL = "benchmarks.gpu.mapped:"


@dataclass(frozen=True)
class Work:
    """An op, its operands, and how often it goes through the bytes that it is given and makes."""

    make: Callable[[torch.device, int], tuple[Tensor, ...]]
    run: Callable[..., Tensor]
    sweeps: float = 1.0
    """0: a few rows of them."""


def _ramp(device: torch.device, count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float32, device=device).remainder_(1009).div_(1009)


def _rows(device: torch.device, count: int) -> Tensor:
    return _ramp(device, count).view(-1, 1024)


def _adam(param: Tensor, grad: Tensor, mean: Tensor, square: Tensor) -> Tensor:
    step = torch.tensor(3.0, device=param.device)
    torch._fused_adam_([param], [grad], [mean], [square], [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
                       eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip
    return param


WORKS = {
    "add": Work(lambda d, n: (_ramp(d, n), _ramp(d, n)), torch.add),
    "adam": Work(lambda d, n: tuple(_ramp(d, n) for _ in range(4)), _adam),
    "softmax": Work(lambda d, n: (_rows(d, n),), lambda rows: torch.softmax(rows, 1)),
    "embedding": Work(lambda d, n: (torch.arange(0, n // 1024, 61, device=d), _rows(d, n)), functional.embedding, 0.0),
    "mm": Work(lambda d, n: (_rows(d, n), _rows(d, 1 << 20)), torch.mm, 2.0),
}


def measure(bench: Bench) -> None:
    """Run the cells."""
    for name in WORKS:
        bench.run(name, f"{_CALL}calls", 60.0, memfit=True, work=name)


def calls(request: Request, note: Note) -> Row:
    """Return the times of a call in the GPU's memory and by each mechanism, the bytes that it reaches, and its bits."""
    device = prepare(request)
    quick, work = request["quick"], WORKS[request["work"]]
    count = _QUICK if quick else _LARGE
    found: Row = {"operand_bytes": 4 * count, "sweeps": work.sweeps} | _timed(device, work, count)
    found["plain_ms"], bits = found.pop("ms"), found.pop("bits")
    release(device)
    budget = (_LIBRARIES_QUICK if quick else _LIBRARIES) + int(_SHARE * 4 * count) // (2 << 20) * (2 << 20)
    for mechanism in MECHANISMS if device.type == "cuda" else ("",):
        with (
            PeakSampler(device) as sampler,
            memfit.session(budget, tier_of(device), device=device, plan=False, map="always") as session,
        ):
            engine.load().set_mapping("always", mechanism)
            row = _timed(device, work, count)
            stats = session.stats
            row |= {"mapped_storages": stats.mapped_storages, "peak_frame_bytes": stats.peak_frame_bytes}
        row |= {"same_bits": row.pop("bits") == bits, "budget_bytes": budget} | sampler.driver()
        found[mechanism or "mapped"] = row
        note(found)
        release(device)
    return found


def _timed(device: torch.device, work: Work, count: int) -> Row:
    operands = work.make(device, count)
    result = work.run(*operands)
    bits = fingerprint([result.cpu()])  # there each of its ops would go over the link
    del result
    times = []
    for _ in range(CALLS):
        began = now(device)
        work.run(*operands)
        ended = now(device)
        synchronize(device)
        times.append(ms_between(began, ended))
    return {"ms": statistics.median(times), "bits": bits}


def tables(cells: Row) -> list[Table]:
    """Return the table of what there is."""
    done = measured(cells)
    rows = [_row(name, done[name], way) for name in WORKS if name in done for way in _ways(done[name])]
    columns = ["op", "by", "operand GiB", "budget GiB", "plain ms", "mapped ms", "mapped / plain", "driver GiB", "bits"]
    return [Table("Below one op's working set", columns, rows)] if rows else []


def _ways(found: Row) -> Sequence[str]:
    return [way for way in (*MECHANISMS, "mapped") if way in found]


def _row(name: str, found: Row, way: str) -> list[str]:
    mapped = found[way]
    peak = mapped.get("peak_bytes")
    driver = "-" if peak is None else f"{(peak - (mapped.get('left_bytes') or 0)) / GIB:.2f}"
    return [name, way, f"{found['operand_bytes'] / GIB:.3f}", f"{mapped['budget_bytes'] / GIB:.3f}",
            f"{found['plain_ms']:.2f}", f"{mapped['ms']:.2f}", f"{mapped['ms'] / found['plain_ms']:.1f}x", driver,
            "equal" if mapped["same_bits"] else "DIFFER"]  # fmt: skip
