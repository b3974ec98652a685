"""What must hold of training on a GPU. Each runs in a process of its own, on a simulated one (test_cuda_sim.py)."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import Tensor

import memfit
from cuda_sim.simulator import MIB, Gpu
from cuda_sim.training import EVENTS, PLANNED_FROM, PROGRAMS, QUIET, after_each_step, assert_equal, events
from memfit.planning.joint.clean import copied_before
from memfit.planning.lifetimes import Gap
from memfit.running.engine.tiers import TierSpec
from memfit.running.session import Session

DISK = tempfile.gettempdir()
TIERS = (
    TierSpec("ram"),
    TierSpec("disk", DISK),
    TierSpec("ram", DISK, 4 * MIB),
    TierSpec("ram", checked=True),
    TierSpec("disk", DISK, checked=True),
)


def plainly(program: Callable[[], list[Tensor]]) -> tuple[list[Tensor], int]:
    """Return what the program computes without a session, and the device memory it takes."""
    torch.manual_seed(0)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = program()
    return result, torch.cuda.max_memory_allocated()


def governed(gpu: Gpu, program: Callable[[], list[Tensor]], budget: str | int, tier: TierSpec, plain: list[Tensor],
             **options: bool) -> memfit.Stats:  # fmt: skip
    """Run the program in a session and compare; what the driver has given out stays within a fixed budget."""
    torch.cuda.empty_cache()
    assert gpu.count("in_use") == 0
    gpu.reset_peak()
    torch.manual_seed(0)
    with memfit.session(budget, tier, device="cuda", **options) as session:
        result = program()
        if isinstance(budget, int):
            assert gpu.count("peak") <= budget
    assert_equal(plain, result)
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes
    return session.stats


def a_tight_budget_changes_no_bit(gpu: Gpu) -> None:
    for program in PROGRAMS:
        plain, peak = plainly(program)
        for share in (0.8, 0.6):
            stats = governed(gpu, program, int(share * peak) + MIB, TierSpec("ram"), plain, plan=False)
            assert stats.evictions > 0, program.__name__
        print(program.__name__, peak, stats.evictions)


def expandable_segments_of_torch_s_change_nothing(gpu: Gpu) -> None:
    """What is there before the session lies in one, and what has left the arena at its end does again."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    before = torch.ones(MIB, device="cuda")
    assert {segment["is_expandable"] for segment in torch.cuda.memory.memory_snapshot()} == {True}
    for plan in (False, True):
        plain, peak = plainly(lambda: events(QUIET))
        torch.manual_seed(0)
        with memfit.session(int(0.8 * peak), device="cuda", plan=plan) as session:
            result = events(QUIET)
            during = before * 2
        assert_equal(plain, result)
        assert session.stats.evictions > 0 and (session.planned_iterations > 0) == plan
        assert before.sum() == MIB and during.sum() == 2 * MIB


def a_share_of_the_peak_is_a_budget(gpu: Gpu) -> None:
    for program in PROGRAMS:
        plain, _ = plainly(program)
        stats = governed(gpu, program, "70%", TierSpec("ram"), plain)
        assert stats.evictions > 0, program.__name__


def planned_swaps_change_no_bit(gpu: Gpu) -> None:
    plain, _ = plainly(lambda: events(QUIET))
    for tier in TIERS:
        for budget in ("65%", "75%"):
            stats = governed(gpu, lambda: events(QUIET), budget, tier, plain)
            assert stats.plans >= 1 and stats.swaps > 0 and stats.prefetches > 0, tier
            assert stats.failed_copies == 0


def planned_swaps_change_no_bit_however_late_a_stream_is(gpu: Gpu, rounds: int = 8) -> None:
    plain, _ = plainly(lambda: events(QUIET))
    for seed in range(rounds):
        gpu.delay(random.Random(seed).choice((0, 100, 300, 1000)), seed)
        stats = governed(gpu, lambda: events(QUIET), "65%", TIERS[seed % 3], plain)
        assert stats.swaps > 0 and stats.prefetches > 0
    gpu.delay(0)


def whatever_happens_in_planned_mode_changes_no_bit(gpu: Gpu) -> None:
    for event in EVENTS:
        names = [*QUIET, event, "train", "train", event, event, *QUIET]
        plain, _ = plainly(lambda names=names: events(names))
        gpu.delay(50)
        stats = governed(gpu, lambda names=names: events(names), "65%", TierSpec("ram"), plain)
        gpu.delay(0)
        assert stats.prefetches > 0, event


def any_order_of_events_changes_no_bit(gpu: Gpu, rounds: int = 6) -> None:
    for seed in range(rounds):
        chance = random.Random(seed)
        names = [*QUIET[:PLANNED_FROM], *chance.choices(EVENTS, k=chance.randint(1, 12)), "train", "train"]
        gpu.delay(0)
        plain, _ = plainly(lambda names=names: events(names))
        gpu.delay(chance.choice((0, 100, 500)), seed)
        governed(gpu, lambda names=names: events(names), chance.choice(("70%", "65%")), chance.choice(TIERS), plain)
    gpu.delay(0)


def hundreds_of_delayed_runs_change_no_bit(gpu: Gpu) -> None:
    planned_swaps_change_no_bit_however_late_a_stream_is(gpu, 300)


def a_hundred_orders_of_events_change_no_bit(gpu: Gpu) -> None:
    any_order_of_events_changes_no_bit(gpu, 100)


def a_session_may_begin_in_any_stream(gpu: Gpu) -> None:
    plain, peak = plainly(lambda: events(QUIET))
    gpu.delay(200, 1)
    with torch.cuda.stream(torch.cuda.Stream()):
        stats = governed(gpu, lambda: events(QUIET), "65%", TierSpec("ram"), plain)
    assert stats.swaps > 0 and stats.prefetches > 0
    governed(gpu, lambda: events(QUIET), peak * 3 // 4, TierSpec("ram"), plain)
    gpu.delay(0)


def a_measured_timeline_has_the_plans_copies(gpu: Gpu) -> None:
    """Whatever plan is in force: the timeline is of an iteration under it.

    The first one under a plan begins with what was left outside before, which needs no copy out. All others have the
    plan's copies, but for those out of storages that have not been written to since they came back: the tier has them.
    """
    plain, _ = plainly(lambda: events(QUIET * 2))
    torch.manual_seed(0)
    found: list[tuple[int, int]] = []

    def look() -> None:
        measured, plan = session.measured, session.planned
        if measured is not None and plan is not None and plan.plan is not None:
            assert all(copy.end_us >= copy.start_us for copy in measured.copies)
            ran = session.what_ran()
            assert ran is not None
            gaps = [
                Gap(s.storage, s.out_after, s.in_before % len(ran.trace.ops), 0, 0.0, s.cyclic) for s in plan.plan.swaps
            ]
            clean = copied_before(ran.trace, [SimpleNamespace(gap=gap) for gap in gaps])
            planned = sum(1 + swap.returns for swap in plan.plan.swaps) - sum(map(bool, clean.values()))
            found.append((len(measured.copies), planned))

    with after_each_step(look), Session("65%", device="cuda", measures=True) as session:
        result = events(QUIET * 2)
        stats = session.stats
    assert_equal(plain, result)
    assert stats.stall_ns >= 0 and stats.out_ns > 0 and stats.in_ns > 0
    first = [(copies, planned) for copies, planned in found if copies != planned]
    assert len(first) <= stats.plans < len(found) // 2, (stats.plans, found)
    assert all(copies < planned for copies, planned in first), found


def ops_are_timed_without_the_copies_beside_them(gpu: Gpu) -> None:
    """A plan would believe that copies fit beside ops just where the recorded iteration made them."""
    times = {}
    for link in (0, 1e8):
        gpu.link(link)
        with Session("65%", device="cuda", plan_cache=False, moves="swap") as session:
            events(QUIET[:9])
            plan = session.planned
        assert plan is not None and plan.predicted is not None
        times[link] = plan.predicted.compute_us
    gpu.link(0)
    assert times[1e8] < 1.5 * times[0]


def the_trace_is_of_the_gpu(gpu: Gpu) -> None:
    with memfit.session(None, device="cuda", plan=False) as session:
        events(QUIET[:4])
    trace = session.trace
    assert trace.alignment == 512 and trace.device == "cuda"
    assert all(op.duration_us >= 0 for op in trace.ops) and sum(op.duration_us for op in trace.ops) > 0
