"""The steps of the first minutes on a GPU: what a user sees first, and what a simulated GPU cannot tell."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import memfit
from benchmarks.common.paths import ROOT
from benchmarks.common.result import GIB, Row
from benchmarks.common.waiting import wait_for_plans
from benchmarks.gpu.accelerator import prepare, release, synchronize, tier_of
from benchmarks.gpu.cells import Note, Request
from benchmarks.gpu.probe_link import registered

STEPS = 20
_SHARE = 0.6  # of the plain peak, which is the budget
_FILLED, _FILLED_QUICK = 40 * GIB, 64 << 20
_OUTPUT_LINES = 40  # that are kept of a program's
_SAID = ("plans", "swaps", "prefetches", "derailments", "plan_mismatches", "peak_footprint_bytes", "budget_bytes")

Train = Callable[[torch.device], Iterator[Tensor]]  # yields each step's loss, and at last the parameters


def doctor(request: Request, note: Note) -> Row:
    """Run `memfit doctor`."""
    return _program(["-m", "memfit", "doctor"], request["limit_s"])


def tests(request: Request, note: Note) -> Row:
    """Run the tests on a GPU that are in one file."""
    return _program(["-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", request["path"]], request["limit_s"])


def _program(arguments: list[str], limit_s: float) -> Row:
    """Run python with the arguments; return its last lines, or raise with them if it fails."""
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=limit_s - 1)  # fmt: skip
    lines = done.stdout.strip().splitlines()[-_OUTPUT_LINES:]
    if done.returncode != 0:
        print(done.stdout)
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {lines[-1] if lines else ''}")
    return {"lines": lines}


def register(request: Request, note: Note) -> Row:
    """Time cudaHostRegister of 1 GiB of fresh pages and of pages that are there."""
    prepare(request)
    size = _FILLED_QUICK if request["quick"] else GIB
    return {"size_bytes": size} | registered(size)


def fill(request: Request, note: Note) -> Row:
    """Time a session that is filled to 40 GiB, half of it in the tier, and its end, which brings everything back."""
    device = prepare(request)
    size = _FILLED_QUICK if request["quick"] else _FILLED
    piece = size // 64
    with memfit.session(size // 2 + 2 * piece, tier_of(device), device=device, plan=False) as session:
        began = time.monotonic()
        held = [torch.full((piece,), n + 1, dtype=torch.uint8, device=device) for n in range(64)]
        synchronize(device)
        found = {"filled_bytes": 64 * piece, "fill_s": time.monotonic() - began, "bytes_out": session.stats.bytes_out}
        note(found)
        began = time.monotonic()
    synchronize(device)
    found["end_s"] = time.monotonic() - began
    return found | {"same_bits": all(bool((tensor == n + 1).all()) for n, tensor in enumerate(held))}


def compiled(request: Request, note: Note) -> Row:
    """Train a compiled network."""
    width, rows = (64, 64) if request["quick"] else (2048, 8192)

    def train(device: torch.device) -> Iterator[Tensor]:
        torch._dynamo.reset()
        model = _stack(width).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model.compile()
        yield from _steps(model, optimizer, lambda: model(torch.randn(rows, width, device=device)))

    return _within(train, request, note)


def shapes(request: Request, note: Note) -> Row:
    """Train on batches of two shapes in turn."""
    width, rows = (64, 64) if request["quick"] else (2048, 8192)

    def train(device: torch.device) -> Iterator[Tensor]:
        model, sizes = _stack(width).to(device), itertools.cycle((rows, 3 * rows // 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        yield from _steps(model, optimizer, lambda: model(torch.randn(next(sizes), width, device=device)), 2 * STEPS)

    return _within(train, request, note)


def _stack(width: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())))


def loader(request: Request, note: Note) -> Row:
    """Train from a loader with two workers and pinned batches, and a log at every fifth step."""
    width, rows = (64, 64) if request["quick"] else (2048, 8192)

    def train(device: torch.device) -> Iterator[Tensor]:
        batches = DataLoader(Numbered(STEPS * rows, width), rows, num_workers=2, pin_memory=device.type == "cuda")
        model = _stack(width).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, batch in enumerate(batches):
            loss = model(batch.to(device, non_blocking=True)).square().mean()
            _descend(optimizer, loss)
            if step % 5 == 0:
                print(f"step {step}: {loss.item():.4f}")
            yield loss.detach()
        yield from model.parameters()

    return _within(train, request, note)


class Numbered(Dataset[Tensor]):
    """Rows that are drawn from their numbers, so that workers give the same ones each time."""

    def __init__(self, rows: int, width: int) -> None:
        self._rows, self._width = rows, width

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(self._width, generator=torch.Generator().manual_seed(index))


def lstm(request: Request, note: Note) -> Row:
    """Train an LSTM with dropout between its layers, whose state of random numbers cuDNN keeps by itself."""
    width, length, batch = (32, 8, 4) if request["quick"] else (1024, 128, 128)

    def train(device: torch.device) -> Iterator[Tensor]:
        model = nn.LSTM(width, width, num_layers=3, dropout=0.3).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        yield from _steps(model, optimizer, lambda: model(torch.randn(length, batch, width, device=device))[0])

    return _within(train, request, note)


def search(request: Request, note: Note) -> Row:
    """Train convolutions that look for the fastest algorithm, which is asked to be one that repeats itself."""
    side, batch = (16, 4) if request["quick"] else (128, 64)

    def train(device: torch.device) -> Iterator[Tensor]:
        torch.backends.cudnn.benchmark = True
        pairs = ((nn.Conv2d(channels, 64, 3, padding=1), nn.GELU()) for channels in (3, *[64] * 7))
        model = nn.Sequential(*(layer for pair in pairs for layer in pair))
        optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.01)
        yield from _steps(model, optimizer, lambda: model(torch.randn(batch, 3, side, side, device=device)))

    return _within(train, request, note)


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, output: Callable[[], Tensor], count: int = STEPS
) -> Iterator[Tensor]:
    for _ in range(count):
        loss = output().square().mean()
        _descend(optimizer, loss)
        yield loss.detach()
    yield from model.parameters()


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _within(train: Train, request: Request, note: Note) -> Row:
    """Train plainly, then inside a share of that peak; return what the session says, and whether the bits are equal."""
    device = prepare(request)
    wait_for_plans()
    expected, peak = _plainly(train, device)
    note({"plain_peak_bytes": peak})
    release(device)
    with memfit.session(int(_SHARE * peak), tier_of(device), device=device, plan_cache=False) as session:
        found = _seeded(train, device)
    stats = asdict(session.stats)
    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    return {"same_bits": same, "iterations": stats["iterations"], "planned_iterations": session.planned_iterations,
            "unplanned": list(session.unplanned),
            **{name: stats[name] for name in _SAID}}  # fmt: skip


def _plainly(train: Train, device: torch.device) -> tuple[list[Tensor], int]:
    """Return the losses and parameters of a plain run, on the host, and the bytes it took at its peak."""
    release(device)
    if device.type == "cuda":
        return _seeded(train, device), torch.cuda.max_memory_allocated()
    with memfit.session(None, "ram", device=device, plan=False) as session:
        expected = _seeded(train, device)
    return expected, session.stats.peak_live_bytes


def _seeded(train: Train, device: torch.device) -> list[Tensor]:
    torch.manual_seed(0)
    return [tensor.detach().cpu() for tensor in train(device)]
