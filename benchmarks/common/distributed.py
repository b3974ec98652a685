"""Small trainings of each kind of torch.distributed: functions of a rank, which is told of every step.

They train on torch's default device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH, DEPTH, BATCH = 7, 128, 5, 512


class Rank(Protocol):
    """One process of several that train together."""

    number: int
    world: int
    folder: Path

    def note(self, *tensors: Tensor | None) -> None:
        """Note the bits of a step."""


def note_training(rank: Rank, loss: Tensor, model: nn.Module) -> None:
    """Note a step: its loss, the gradients and the parameters."""
    rank.note(loss, *(p.grad for p in model.parameters()), *model.parameters())


def network(depth: int = DEPTH) -> nn.Sequential:
    torch.manual_seed(1)
    blocks = [[nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()] for _ in range(depth)]
    return nn.Sequential(*(layer for block in blocks for layer in block))


def batches(rank: Rank, same: bool = False) -> Iterator[Tensor]:
    generator = _generator(0 if same else 100 + rank.number)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator(torch.get_default_device()).manual_seed(seed)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


def train(rank: Rank, model: nn.Module, optimizer: torch.optim.Optimizer, same: bool = False, parts: int = 1) -> None:
    """Train; each step has so many parts whose gradients are added up, and only the last one is synchronised."""
    for batch in batches(rank, same):
        optimizer.zero_grad()
        for i, part in enumerate(batch.chunk(parts)):
            with model.no_sync() if i < parts - 1 else nullcontext():  # type: ignore[operator]
                loss = model(part).square().mean()
                loss.backward()
        optimizer.step()
        note_training(rank, loss, model)


def ddp(rank: Rank, parts: int = 1, hook: Any = None, **options: Any) -> None:
    model = DistributedDataParallel(network(), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    train(rank, model, adam(model.parameters()), parts=parts)


def ddp_views(rank: Rank) -> None:
    ddp(rank, gradient_as_bucket_view=True)


def ddp_no_sync(rank: Rank) -> None:
    ddp(rank, parts=2)


def ddp_static_graph(rank: Rank) -> None:
    ddp(rank, static_graph=True)


def ddp_hook(rank: Rank) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp(rank, hook=fp16_compress_hook)


def ddp_sparse(rank: Rank) -> None:
    """A table whose gradients are sparse: gloo's own threads make what comes of them."""
    torch.manual_seed(1)
    table = nn.Embedding(4 * WIDTH, WIDTH, sparse=True)
    model = DistributedDataParallel(nn.Sequential(table, network()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for batch in batches(rank):
        optimizer.zero_grad()
        loss = model((1000 * batch[:, 0].abs()).long() % len(table.weight)).square().mean()
        loss.backward()
        optimizer.step()
        assert table.weight.grad is not None
        rank.note(loss, table.weight.grad.to_dense(), *model.parameters())


def ddp_join(rank: Rank) -> None:
    """Ranks have different numbers of batches: those that are through take part in the others' collectives."""
    from itertools import islice

    model = DistributedDataParallel(network())
    optimizer = adam(model.parameters())
    with model.join():
        for batch in islice(batches(rank), STEPS - rank.number):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            note_training(rank, loss, model)
    note_training(rank, loss, model)  # that is of the rank that was through last


def _reduced_by(rank: Rank, reduce: Callable[[nn.Module], None]) -> None:
    """Train with gradients that `reduce` has summed up over all ranks when it returns."""
    model = network()
    optimizer = adam(model.parameters())
    for batch in batches(rank):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        reduce(model)
        optimizer.step()
        note_training(rank, loss, model)


def coalesced(rank: Rank) -> None:
    """All gradients are reduced by one collective, which is begun as several."""

    def reduce(model: nn.Module) -> None:
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as manager:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        manager.wait()

    _reduced_by(rank, reduce)


def by_hand(rank: Rank) -> None:
    """Gradients are reduced asynchronously, each on its own, and waited for before the step."""

    def reduce(model: nn.Module) -> None:
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()

    _reduced_by(rank, reduce)


def every_collective(rank: Rank) -> None:
    """Each collective of gloo's, with and without waiting at once, beside ops that need the room."""
    from torch.distributed import _functional_collectives as functional

    generator = _generator(rank.number)
    peer = (rank.number + 1) % rank.world
    weight = nn.Parameter(torch.randn(WIDTH, WIDTH, generator=generator))
    optimizer = adam([weight])
    for _ in range(STEPS):
        own = torch.randn(BATCH, WIDTH, generator=generator)
        wide = torch.randn(rank.world * BATCH, WIDTH, generator=generator)
        gathered, received = torch.empty_like(wide), torch.empty_like(own)
        parts = [torch.empty_like(own) for _ in range(rank.world)]
        scattered, exchanged = torch.empty_like(own), torch.empty_like(wide)
        works = [
            dist.all_gather_into_tensor(gathered, own, async_op=True),
            dist.all_gather(parts, own, async_op=True),
            dist.reduce_scatter_tensor(scattered, wide, async_op=True),
            dist.all_to_all_single(exchanged, wide, async_op=True),
            dist.irecv(received, (rank.number - 1) % rank.world),
            dist.isend(own, peer),
        ]
        beside = [(wide @ weight).tanh() for _ in range(4)]
        for work in works:
            work.wait()
        dist.broadcast(own, 0)
        functioned = functional.all_reduce(own, "sum", list(range(rank.world)))
        results = (gathered, received, scattered, exchanged, functioned, *beside)
        loss = sum((x @ weight).square().mean() for x in results)
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        rank.note(loss, weight, weight.grad, gathered, received, scattered, exchanged, functioned, *parts)


def fsdp1(rank: Rank) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    blocks = [network(1) for _ in range(DEPTH)]
    model = FullyShardedDataParallel(
        nn.Sequential(*blocks), auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), device_id=torch.get_default_device()
    )
    train(rank, model, adam(model.parameters()))


def sharded(depth: int = DEPTH) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(network(1) for _ in range(depth)))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def fsdp2(rank: Rank) -> None:
    model = sharded()
    train(rank, model, adam(model.parameters()))


def checkpointed(rank: Rank) -> None:
    """FSDP2, whose checkpoints are written at once and beside training, and read back."""
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    dcp: Any = torch.distributed.checkpoint
    model = sharded()
    optimizer = adam(model.parameters())
    train(rank, model, optimizer)
    now, later = rank.folder / "now", rank.folder / "later"

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"weights": weights, "moments": moments}

    dcp.save(state(), checkpoint_id=now)
    writing = dcp.async_save(state(), checkpoint_id=later, process_group=dist.new_group())
    train(rank, model, optimizer)  # beside it
    writing.result()
    for checkpoint in (now, later):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        read = state()
        dcp.load(read, checkpoint_id=checkpoint)
        set_state_dict(model, optimizer, model_state_dict=read["weights"], optim_state_dict=read["moments"])
        rank.note(*model.parameters())
        train(rank, model, optimizer)


def zero(rank: Rank) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    train(rank, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3))


def zero_alone(rank: Rank) -> None:
    """Gradients are reduced by hand: nothing has buckets."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = network()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    for batch in batches(rank):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        note_training(rank, loss, model)


def tensor_parallel(rank: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2 * DEPTH)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.GELU())))
    styles: dict[str, Any] = {str(2 * i): (ColwiseParallel, RowwiseParallel)[i % 2]() for i in range(2 * DEPTH)}
    parallelize_module(model, init_device_mesh(torch.get_default_device().type, (rank.world,)), styles)
    train(rank, model, adam(model.parameters()), same=True)


def pipeline(rank: Rank) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole = network(2 * rank.world)
    length = len(whole) // rank.world
    own = whole[rank.number * length : (rank.number + 1) * length]
    stage = PipelineStage(own, rank.number, rank.world, torch.get_default_device())
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda output, target: (output - target).square().mean())
    optimizer = adam(own.parameters())
    for batch in batches(rank, same=True):
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank.number == 0:
            schedule.step(batch)
        elif rank.number == rank.world - 1:
            schedule.step(target=batch, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        note_training(rank, sum(losses, torch.zeros(())), own)
