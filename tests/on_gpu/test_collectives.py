"""Training over NCCL in a group of one rank: what a collective is given stays until its Work is complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import memfit
from benchmarks.common import distributed as kinds
from on_gpu.helpers_gpu import MIB
from running.distributed.ranks import Rank, run

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
KINDS = [
    "ddp", "ddp_views", "ddp_no_sync", "ddp_static_graph", "ddp_hook", "by_hand", "coalesced", "fsdp1", "fsdp2",
    "checkpointed", "zero", "zero_alone", "tensor_parallel",
]  # fmt: skip
SLACK = 64 << 10  # what is small
PARAMETERS = 4 * kinds.DEPTH * (kinds.WIDTH + 3) * kinds.WIDTH  # bytes, and of gradients
# What is recorded in another stream stays until it is freed: what a hook gets in 16 bits, and FSDP1's gradients.
RECORDED = {"ddp_hook": PARAMETERS, "fsdp1": PARAMETERS}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory) -> Iterator[None]:
    if not torch.cuda.is_available() or not dist.is_nccl_available():
        pytest.skip("there is no NCCL, or no GPU")
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    device = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, device_id=device)
    yield
    dist.destroy_process_group()


def every_collective(rank: Rank) -> None:
    """Collectives of NCCL's without a peer, beside ops that need the room."""
    weight = torch.nn.Parameter(torch.randn(kinds.WIDTH, kinds.WIDTH, generator=torch.Generator("cuda").manual_seed(0)))
    optimizer = kinds.adam([weight])
    for own in kinds.batches(rank):
        gathered, scattered, exchanged = (torch.empty_like(own) for _ in range(3))
        works = [
            dist.all_gather_into_tensor(gathered, own, async_op=True),
            dist.reduce_scatter_tensor(scattered, own, async_op=True),
            dist.all_to_all_single(exchanged, own, async_op=True),
        ]
        beside = [(own @ weight).tanh() for _ in range(4)]
        for work in works:
            work.wait()
        dist.broadcast(own, 0)
        loss = sum((x @ weight).square().mean() for x in (gathered, scattered, exchanged, own, *beside))
        optimizer.zero_grad()
        loss.backward()
        dist.all_reduce(weight.grad)
        optimizer.step()
        rank.note(loss, weight, weight.grad, gathered, scattered, exchanged)


PROGRAMS = {kind: getattr(kinds, kind) for kind in KINDS} | {"every_collective": every_collective}


@pytest.mark.parametrize("kind", PROGRAMS)
def test_a_rank_of_nccl_trains_as_plainly_with_nothing_pinned(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "BATCH", 16 << 10)
    monkeypatch.setattr(kinds, "STEPS", 10)
    program = PROGRAMS[kind]
    folders = [tmp_path / name for name in ("plain", "unlimited", "limited")]
    for folder in folders:
        folder.mkdir()
    plain = run(program, Rank(0, 1, folders[0]), None)
    with memfit.session(None, device="cuda") as session:
        program(Rank(0, 1, folders[1]))
    budget = max(session.stats.peak_live_bytes * 6 // 10, 4 * MIB)
    limited = run(program, Rank(0, 1, folders[2]), str(budget), device="cuda")
    assert limited.seen == plain.seen
    assert limited.moved > 0 and limited.peak_resident_bytes <= limited.budget_bytes
    most = SLACK + RECORDED.get(kind, 0)
    assert all(pinned <= most for pinned in limited.pinned_bytes[-3:]), limited.pinned_bytes


def test_what_is_given_to_a_collective_in_flight_stays_until_it_is_complete():
    with memfit.session(48 * MIB, device="cuda") as session:
        given = torch.full((2 * MIB,), 3.0)
        torch.cuda._sleep(200_000_000)  # the collective waits for this
        work = dist.all_reduce(given, async_op=True)
        held = session.stats.collective_bytes
        pressed = [torch.full((2 * MIB,), float(n)) for n in range(6)]
        work.wait()
        torch.cuda.synchronize()
        assert held >= given.nbytes and torch.equal(given, torch.full((2 * MIB,), 3.0))
        assert [int(each[0]) for each in pressed] == list(range(6))
        torch.ones(MIB).add_(1)
        assert session.stats.collective_bytes == 0
