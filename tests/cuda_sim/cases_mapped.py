"""What must hold of mapped storages. Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py)."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import memfit
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import assert_equal, on_host, sgd
from memfit.errors import BudgetError, TierError, UsageError
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec

LATE = 200  # ms
COUNT = 2 * MIB  # elements of a large operand: 8 MiB
MECHANISMS = ("zero-copy", "managed")


@contextlib.contextmanager
def mapping(mechanism: str, budget: int, tier: str | TierSpec = "ram", when: str = "auto") -> Iterator[memfit.Session]:
    """Begin a session whose storages are mapped by that mechanism ("": by whatever there is)."""
    with memfit.session(budget, tier, device="cuda", plan=False, map=when) as session:
        engine.load().set_mapping(when, mechanism)
        yield session


def ramp(count: int = COUNT) -> Tensor:
    return (torch.arange(count, dtype=torch.float32) % 1009).cuda() / 1009


def rows() -> Tensor:
    return ramp().view(256, -1)


def table() -> Tensor:
    return ramp().view(2048, -1)


def adam(*tensors: Tensor) -> tuple[Tensor, ...]:
    step = torch.tensor(3.0, device="cuda")
    torch._fused_adam_(*([tensor] for tensor in tensors), [], [step], lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.1,
                       eps=1e-8, amsgrad=False, maximize=False)  # fmt: skip
    return tensors


def cross_entropy() -> tuple[Tensor, ...]:
    logits = rows().requires_grad_()
    loss = F.cross_entropy(logits, (torch.arange(256) % logits.shape[1]).cuda())
    loss.backward()
    return loss.detach(), logits.grad


WORKS: tuple[Callable[[], tuple[Tensor, ...]], ...] = (
    lambda: (ramp() + ramp().flip(0),),
    lambda: (ramp().mul_(1.25),),
    lambda: (torch.cat([ramp(), ramp()]),),
    lambda: adam(*(ramp() for _ in range(4))),
    lambda: (torch.softmax(rows(), 1),),
    lambda: (rows() @ rows().t(),),
    lambda: (F.embedding(torch.arange(0, 2048, 7).cuda(), table()),),
    cross_entropy,
)


def work(each: Callable[[], tuple[Tensor, ...]]) -> list[Tensor]:
    return on_host(each())


def an_op_that_does_not_fit_runs_where_its_bytes_wait(gpu: Gpu) -> None:
    """To the same bits, in the budget by the driver's count, by both mechanisms."""
    expected = [work(each) for each in WORKS]
    for mechanism in MECHANISMS:
        for each, plain in zip(WORKS, expected, strict=True):
            torch.cuda.empty_cache()
            gpu.reset_peak()
            with mapping(mechanism, 6 * MIB) as session:
                results = each()
                stats = session.stats
                assert gpu.count("peak") <= 6 * MIB, (mechanism, each)
                assert_equal(plain, on_host(results))
                del results
                assert gpu.count("peak") <= 6 * MIB, (mechanism, each)
            assert stats.mapped_ops > 0 and stats.growths == 0 and stats.faults == 0, (mechanism, each)
    assert gpu.count("managed") == 0


def never_makes_it_an_error_that_names_the_op(gpu: Gpu) -> None:
    with (
        pytest.raises(BudgetError, match=r"cannot be met: aten::full needs at least 8"),
        mapping("", 6 * MIB, when="never"),
    ):
        torch.full((COUNT,), 1.0, device="cuda")
    with mapping("", 6 * MIB, when="never"), pytest.raises(UsageError, match="cannot be mapped"):
        memfit.map(torch.ones(9, device="cuda"))


def what_it_costs_is_said_once(gpu: Gpu) -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), mapping("", 6 * MIB):
        for _ in range(3):
            ramp() + 1
    lines = [line for line in said.getvalue().splitlines() if "mapped storages" in line]
    assert len(lines) == 1 and "over its link" in lines[0] and "--map never" in lines[0], said.getvalue()


def an_op_that_fits_maps_nothing(gpu: Gpu) -> None:
    with mapping("", 64 * MIB) as session:
        ramp() + ramp()
    assert session.stats.mapped_storages == 0


def always_maps_whatever_may_be(gpu: Gpu) -> None:
    expected = work(WORKS[0])
    for mechanism in MECHANISMS:
        with mapping(mechanism, 64 * MIB, when="always") as session:
            assert_equal(expected, work(WORKS[0]))
        assert session.stats.mapped_storages > 0


def places_of_the_slab_are_used_again_after_ops_that_are_late(gpu: Gpu) -> None:
    """An op that reads and writes there may not have begun when what it uses is freed, or copied on."""
    main = torch.cuda.current_stream()
    plain = ramp()
    expected = [plain + 1, plain * 2 + 3]
    for mechanism in MECHANISMS:
        with mapping(mechanism, 6 * MIB):
            for _ in range(3):
                a = ramp()
                gpu.pause(main, LATE)
                b = a + 1
                del a  # its place is free for others
                others = [torch.full((MIB // 4,), float(i), device="cuda") for i in range(24)]  # which leave for it
                assert torch.equal(b.cpu(), expected[0].cpu())
                gpu.pause(main, LATE)
                b.mul_(2).add_(1)
                parts = [part.clone() for part in b.split(MIB // 4)]  # of which each comes in, and leaves
                b.zero_()
                assert_equal(on_host(expected[1].split(MIB // 4)), on_host(parts))
                assert [other.amax().item() for other in others] == list(range(24))
                del b, others, parts


def ops_of_another_stream_are_in_the_order(gpu: Gpu) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    expected = ((ramp() + 1) * 3 - 2).cpu()
    for mechanism in MECHANISMS:
        with mapping(mechanism, 6 * MIB):
            a = ramp()
            gpu.pause(main, LATE)
            a.add_(1)
            gpu.pause(side, LATE)
            with torch.cuda.stream(side):
                a.mul_(3)
            a.sub_(2)
            assert torch.equal(a.cpu(), expected)


def trained() -> list[Tensor]:
    """Train a network whose activations have 4 MiB each."""
    torch.manual_seed(0)
    blocks = (m for _ in range(3) for m in (nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)))
    net = nn.Sequential(*blocks, nn.Linear(256, 512)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        words = torch.randint(512, (4096,)).cuda()
        loss = F.cross_entropy(net(torch.randn(4096, 256).cuda()), words)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return on_host([*losses, *net.parameters()])


def training_below_one_ops_working_set_gives_the_same_bits(gpu: Gpu) -> None:
    """At any timing of the streams; the driver gives out no more than the budget."""
    expected = trained()
    torch.cuda.empty_cache()
    for seed, (mechanism, tier) in enumerate((*((each, "ram") for each in MECHANISMS), ("", "disk:/tmp"))):
        gpu.delay(100, seed)
        gpu.reset_peak()
        with mapping(
            mechanism, 6 * MIB, DisturbedTier("ram", longest_delay_us=100) if tier == "ram" else tier
        ) as session:
            results = trained()
            assert gpu.count("peak") <= 6 * MIB
        assert_equal(expected, results)
        assert session.stats.mapped_ops > 0


def programs_that_plan_are_the_same_where_an_op_does_not_fit(gpu: Gpu) -> None:
    torch.manual_seed(1)
    expected = sgd()
    for when in ("auto", "always"):
        torch.manual_seed(1)
        gpu.delay(50, 7)
        with memfit.session(4 * MIB, device="cuda", map=when):
            assert_equal(expected, sgd())


def rows_of(weights: Tensor) -> list[Tensor]:
    chosen = torch.arange(0, weights.shape[0], 37, device="cuda")
    found = []
    for step in range(4):
        picked = torch.index_select(weights, 0, (chosen + step) % weights.shape[0])
        weights.index_add_(0, (chosen + step) % weights.shape[0], torch.full_like(picked, 0.25))
        found.append(F.embedding(chosen, weights).sum(1))
    return on_host(found)


def a_table_of_many_budgets_is_read_by_rows_where_it_waits(gpu: Gpu) -> None:
    def made() -> Tensor:
        return ramp(12 * COUNT // 2).view(-1, 256)  # 48 MiB

    expected = made()
    results = rows_of(expected)
    for mechanism in ("", *MECHANISMS):
        before = made()
        gpu.reset_peak()
        with mapping(mechanism, 6 * MIB) as session:
            memfit.map(before)
            moved = session.stats.bytes_in + session.stats.mapped_bytes_in
            assert_equal(results, rows_of(before))
            came = session.stats.bytes_in + session.stats.mapped_bytes_in - moved
            assert came <= (0 if mechanism != "managed" else before.nbytes) + 4 * MIB, (mechanism, came)
        assert torch.equal(before.cpu(), expected.cpu())


def a_storage_larger_than_a_piece_of_locked_memory_lies_in_one(gpu: Gpu) -> None:
    count = 300 * MIB // 4
    with mapping("zero-copy", 8 * MIB) as session:
        small = torch.full((MIB // 4,), 5.0, device="cuda")
        large = torch.full((count,), 2.0, device="cuda")
        large[::MIB].add_(1)
        large.mul_(2)
        assert large[::MIB].amin().item() == 6 and large[1::MIB].amax().item() == 4 == large.amin().item()
        assert large[-8:].cpu().tolist() == [4.0] * 8
        assert small.sum().item() == 5 * MIB // 4 and session.stats.mapped_ops > 0
    assert large.amax().item() == 6


def bytes_of_a_disk_or_of_a_tier_that_is_checked_come_by_managed_memory(gpu: Gpu) -> None:
    expected = [work(each) for each in WORKS[:4]]
    for tier in ("disk:/tmp", DisturbedTier("ram", checked=True), TierSpec("ram", "/tmp", capacity_bytes=12 * MIB)):
        with mapping("", 6 * MIB, tier) as session:
            for plain, each in zip(expected, WORKS, strict=False):
                assert_equal(plain, work(each))
        assert session.stats.mapped_ops > 0
    with pytest.raises(BudgetError), mapping("zero-copy", 6 * MIB, "disk:/tmp"):
        work(WORKS[0])


def memory_that_is_not_locked_is_reached_as_managed_memory(gpu: Gpu) -> None:
    expected = work(WORKS[0])
    gpu.allow_locking(0)
    with mapping("", 6 * MIB) as session:
        assert_equal(expected, work(WORKS[0]))
        assert gpu.count("managed") > 0
    assert session.stats.mapped_ops > 0
    gpu.refuse_managed()
    with pytest.raises(BudgetError, match="aten::"), mapping("", 6 * MIB):
        work(WORKS[0])


def memory_that_the_driver_alone_may_lock_is_reached(gpu: Gpu) -> None:
    expected = work(WORKS[0])
    gpu.refuse_registering()
    with mapping("zero-copy", 6 * MIB) as session:
        assert_equal(expected, work(WORKS[0]))
    assert session.stats.mapped_ops > 0


def managed_memory_comes_to_the_gpu_within_its_reserve(gpu: Gpu) -> None:
    """Which the arena has given up; its pages are back with the host before the arena has it again."""
    budget, count = 64 * MIB, 40 * MIB // 4
    expected = on_host((ramp(count) + ramp(count).flip(0),))
    torch.cuda.empty_cache()
    gpu.delay(300, 3)
    gpu.reset_peak()
    with mapping("managed", budget) as session:
        results = (ramp(count) + ramp(count).flip(0),)
        assert 0 < session.stats.peak_frame_bytes <= budget and session.stats.frame_bytes == 0
        assert gpu.count("prefetched") > 0
        filling = [torch.full((MIB // 4,), float(i), device="cuda") for i in range(64)]
        assert_equal(expected, on_host(results))
        assert [other.amin().item() for other in filling] == list(range(64))
        assert gpu.count("peak") <= budget


def a_tier_that_fails_is_an_error_and_loses_no_input(gpu: Gpu) -> None:
    for mechanism in ("", "managed"):
        with mapping(mechanism, 6 * MIB, DisturbedTier("disk", "/tmp", fail_read=3)):
            with pytest.raises(TierError, match="injected fault"):
                for _ in range(4):
                    (ramp() + 1).sum()
            assert torch.ones(3, device="cuda").sum().item() == 3
        with mapping(mechanism, 6 * MIB, DisturbedTier("disk", "/tmp", fail_write=14, repeat=True)):
            a = ramp()
            with pytest.raises(TierError, match="injected fault"):
                for _ in range(40):
                    a + 1
            assert torch.equal(a.cpu(), ramp_on_host())


def ramp_on_host() -> Tensor:
    return (torch.arange(COUNT, dtype=torch.float32) % 1009) / 1009


def addresses_that_escape_are_the_gpus_own(gpu: Gpu) -> None:
    with mapping("", 12 * MIB) as session:
        kept = memfit.map(ramp())
        assert torch.index_select(kept, 0, torch.arange(9, device="cuda")).sum().item() > 0
        assert session.stats.mapped_storages > 0
        file = io.BytesIO()
        torch.save(kept, file)
        resident = session.stats.resident_bytes
        assert kept.data_ptr() != 0
        assert session.stats.resident_bytes >= resident + kept.nbytes
        gpu.fill(kept.data_ptr(), 0, 4, torch.cuda.current_stream())
        assert kept[:2].tolist() == [0.0, ramp_on_host()[1].item()]
    file.seek(0)
    assert torch.equal(torch.load(file).cpu(), ramp_on_host())


def a_child_that_is_forked_ends_well(gpu: Gpu) -> None:
    for mechanism in MECHANISMS:
        with mapping(mechanism, 6 * MIB):
            kept = memfit.map(ramp())
            kept.add_(1)
            child = os.fork()
            if child == 0:
                os._exit(torch.ones(3).sum().item() != 3)
            assert os.waitpid(child, 0)[1] == 0
            assert torch.equal(kept.cpu(), ramp_on_host() + 1)


def what_is_mapped_at_the_end_comes_back(gpu: Gpu) -> None:
    for mechanism in MECHANISMS:
        with mapping(mechanism, 6 * MIB):
            kept = memfit.map(ramp())
            made = kept * 2
            kept.add_(1)
        assert torch.equal(kept.cpu(), ramp_on_host() + 1) and torch.equal(made.cpu(), ramp_on_host() * 2)
        assert gpu.count("managed") == 0
