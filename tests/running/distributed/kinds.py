"""Small trainings of each kind of torch.distributed: functions of a rank, which note every step's bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from running.distributed.ranks import Rank

STEPS, WIDTH, DEPTH, BATCH = 7, 128, 5, 512


def network(depth: int = DEPTH) -> nn.Sequential:
    torch.manual_seed(1)
    blocks = [[nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.GELU()] for _ in range(depth)]
    return nn.Sequential(*(layer for block in blocks for layer in block))


def batches(rank: Rank, same: bool = False) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0 if same else 100 + rank.number)
    for _ in range(STEPS):
        yield torch.randn(BATCH, WIDTH, generator=generator)


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
        rank.note_training(loss, model)


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


def by_hand(rank: Rank) -> None:
    """Gradients are reduced asynchronously, each on its own, and waited for before the step."""
    model = network()
    optimizer = adam(model.parameters())
    for batch in batches(rank):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
        optimizer.step()
        rank.note_training(loss, model)


def every_collective(rank: Rank) -> None:
    """Each collective of gloo's, with and without waiting at once, beside ops that need the room."""
    from torch.distributed import _functional_collectives as functional

    generator = torch.Generator().manual_seed(rank.number)
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
        functioned = functional.all_reduce(own, "sum", dist.group.WORLD)
        loss = sum((x @ weight).square().mean() for x in (gathered, received, scattered, exchanged, functioned, *beside))
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
        nn.Sequential(*blocks), auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}), device_id=torch.device("cpu")
    )
    train(rank, model, adam(model.parameters()))


def sharded(depth: int = DEPTH) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*(network(1) for _ in range(depth)))
    for block in model:
        fully_shard(block)
    return fully_shard(model)


def fsdp2(rank: Rank) -> None:
    model = sharded()
    train(rank, model, adam(model.parameters()))


def checkpointed(rank: Rank) -> None:
    """FSDP2, whose checkpoints are written at once and beside training, and read back."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = sharded()
    optimizer = adam(model.parameters())
    train(rank, model, optimizer)
    now, later = rank.folder / f"now{len(rank.pinned_bytes)}", rank.folder / f"later{len(rank.pinned_bytes)}"

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"weights": weights, "moments": moments}

    dcp.save(state(), checkpoint_id=now)
    writing = dcp.async_save(state(), checkpoint_id=later)
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
        rank.note_training(loss, model)


def tensor_parallel(rank: Rank) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2 * DEPTH)]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.GELU())))
    styles = {str(2 * i): (ColwiseParallel, RowwiseParallel)[i % 2]() for i in range(2 * DEPTH)}
    parallelize_module(model, init_device_mesh("cpu", (rank.world,)), styles)
    train(rank, model, adam(model.parameters()), same=True)


def pipeline(rank: Rank) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    whole = network(2 * rank.world)
    length = len(whole) // rank.world
    own = whole[rank.number * length : (rank.number + 1) * length]
    stage = PipelineStage(own, rank.number, rank.world, torch.device("cpu"))
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
        rank.note_training(sum(losses, torch.zeros(())), own)
