"""What collectives were given stays until they have ended, and no longer, whatever is short of room meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import memfit
from benchmarks.common import distributed as kinds
from memfit.errors import BudgetError
from memfit.running import engine
from memfit.tracing.build import RawRecording
from running.distributed.ranks import Rank, run, together
from running.pressure import BUDGET, COUNT, is_full_of, is_resident

pytestmark = [
    pytest.mark.timeout(200),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.unstressed("when things leave"),
]
BYTES = 4 * COUNT


def push_out(count: int = 2 * COUNT) -> None:
    """Use so many floats of the arena for a moment."""
    torch.full((count,), 1.0).add_(1)


def until_told(folder: Path) -> None:
    while not (folder / "go").exists():
        time.sleep(0.01)


@contextmanager
def limited(budget: int = BUDGET) -> Iterator[memfit.Session]:
    with memfit.session(budget, tier="ram", map="never") as session:
        yield session


def first_of(folder: Path, first: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """Let rank 0 of two do `first`, and rank 1 `other`; return what rank 0 returned."""
    return together(lambda rank: first() if rank == 0 else other(), folder)[0]


def joins_when_told(folder: Path, collective: Callable[[Tensor], Any]) -> Callable[[], None]:
    def other() -> None:
        until_told(folder)
        collective(torch.full((COUNT,), 2.0))

    return other


def test_what_a_collective_was_given_stays_until_it_has_ended_and_then_may_leave(tmp_path):
    def first() -> list[Any]:
        with limited(8 * BYTES) as session:
            given = torch.full((COUNT,), 1.0)
            work = dist.all_reduce(given, async_op=True)
            push_out()
            seen = [is_resident(given), session.stats.collective_bytes, session.stats.pinned_bytes]
            (tmp_path / "go").touch()
            work.wait()
            push_out()
            push_out(8 * COUNT - 64)
            return [*seen, is_resident(given), session.stats.collective_bytes, is_full_of(given, 3.0)]

    assert first_of(tmp_path, first, joins_when_told(tmp_path, dist.all_reduce)) == [True, BYTES, 0, False, 0, True]


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_what_a_collective_holds_is_recorded_as_used_until_the_program_has_waited(is_waited_for, tmp_path):
    def first() -> list[int]:
        with limited():
            loaded = engine.load()
            loaded.start_recording()
            given, other = torch.full((COUNT,), 1.0), torch.zeros(1)
            other.exp_()
            work = dist.all_reduce(given, async_op=True)
            until_told(tmp_path)  # so that it is complete when the next op begins
            time.sleep(0.1)
            for _ in range(20):
                other.add_(1)
            if is_waited_for:
                work.wait()
            other.sub_(1)
            raw = RawRecording.of(loaded.stop_recording())
            users = raw.accesses["op"][raw.accesses["block"] == loaded.block_id(given)]
            names = [raw.op_names[raw.ops["name"][op]] for op in np.unique(users)]
            assert work.is_completed()
            return [names.count("aten::add_.Tensor"), names.count("aten::sub_.Tensor"), names.count("aten::exp_")]

    def other() -> None:
        dist.all_reduce(torch.full((COUNT,), 2.0))
        (tmp_path / "go").touch()

    assert first_of(tmp_path, first, other) == [20, 0 if is_waited_for else 1, 0]


def test_an_op_that_lacks_room_waits_for_a_collective(tmp_path):
    def first() -> list[Any]:
        with limited():
            given = torch.full((COUNT,), 1.0)
            dist.all_reduce(given, async_op=True)
            threading.Timer(0.5, (tmp_path / "go").touch).start()
            began = time.monotonic()
            push_out(4 * COUNT - 64)  # all there is
            return [is_full_of(given, 3.0), time.monotonic() - began]

    is_right, waited = first_of(tmp_path, first, joins_when_told(tmp_path, dist.all_reduce))
    assert is_right
    assert waited > 0.4


def _all_gather(given: Tensor) -> Any:
    """A collective that makes as much as it fills, on a thread of gloo's, when that gets round to it."""
    parts = [torch.empty_like(given) for _ in range(2)]
    return parts, dist.all_gather(parts, given, async_op=True)


def _all_reduce(given: Tensor) -> Any:
    """One that makes nothing."""
    return given, dist.all_reduce(given, async_op=True)


@pytest.mark.parametrize(
    ("collective", "given", "used", "seen_before", "waits"),
    [(_all_gather, 2, 11, True, True), (_all_reduce, 8, 3, True, False), (_all_reduce, 8, 5, False, True)],
)
def test_an_op_that_leaves_no_room_for_what_a_collective_makes_waits(
    collective, given, used, seen_before, waits, tmp_path
):
    """What one makes that is not known yet may be as much as it was given; a factory may need twice what it makes."""

    def begin() -> Any:
        return collective(torch.zeros(given * COUNT))[1]

    def first() -> list[Any]:
        with limited(20 * BYTES) as session:
            if seen_before:
                begin().wait()
            busy = [dist.all_reduce(torch.zeros(8), async_op=True) for _ in range(4)]  # all of gloo's threads
            work = begin()
            torch.zeros(COUNT)
            seen = [work.is_completed()]
            timer = threading.Timer(0.5 if waits else 5, (tmp_path / "go").touch)
            timer.start()
            torch.zeros(used * COUNT)
            seen.append(work.is_completed())
            timer.cancel()
            (tmp_path / "go").touch()
            for each in [*busy, work]:
                each.wait()
            return [*seen, session.stats.growths]

    def other() -> None:
        if seen_before:
            begin().wait()
        until_told(tmp_path)
        for each in [*(dist.all_reduce(torch.zeros(8), async_op=True) for _ in range(4)), begin()]:
            each.wait()

    assert first_of(tmp_path, first, other) == [False, waits, 0]


def _reduce_scatter(given: Tensor) -> Any:
    """A collective that gloo carries out when it is waited for, and not before."""
    output = torch.empty(given.numel() // 2)
    return output, dist.reduce_scatter_tensor(output, given, async_op=True)


def test_what_only_the_program_can_end_is_not_waited_for(tmp_path):
    def first() -> list[Any]:
        with limited():
            given = torch.full((COUNT,), 1.0)
            output, work = _reduce_scatter(given)
            began, text = time.monotonic(), ""
            try:
                push_out(4 * COUNT - 64)
            except BudgetError as error:
                text = str(error)
            took = time.monotonic() - began
            work.wait()
            push_out(4 * COUNT - 64)  # though the Work is kept
            return [text, took, is_full_of(output, 3.0)]

    def other() -> None:
        output, work = _reduce_scatter(torch.full((COUNT,), 2.0))
        work.wait()

    text, took, is_right = first_of(tmp_path, first, other)
    assert "given to collectives that have yet to complete" in text
    assert took < 20
    assert is_right


def test_what_a_collective_was_given_that_nobody_waits_for_may_leave(tmp_path):
    def reduce(value: float) -> bool:
        given = torch.full((COUNT,), value)
        _reduce_scatter(given)  # its Work is gone
        dist.barrier()
        time.sleep(0.3)  # what gloo had under way has ended
        push_out(4 * COUNT - 64)
        return is_full_of(given, value)

    def first() -> bool:
        with limited():
            return reduce(1.0)

    assert first_of(tmp_path, first, lambda: reduce(2.0))


def test_of_collectives_launched_as_one_all_is_pinned(tmp_path):
    def first() -> list[Any]:
        with limited() as session:
            given = torch.full((COUNT,), 1.0)
            engine.load().coalesce_collectives(True)
            dist.all_reduce(given)
            engine.load().coalesce_collectives(False)
            pinned = session.stats.pinned_bytes
            other = torch.full((COUNT,), 1.0)
            dist.all_reduce(other)
            push_out()
            return [pinned, is_resident(given), session.stats.pinned_bytes]

    def other() -> None:
        for _ in range(2):
            dist.all_reduce(torch.full((COUNT,), 2.0))

    assert first_of(tmp_path, first, other) == [BYTES, True, BYTES]


def test_a_session_may_end_before_a_collective_has(tmp_path):
    def first() -> bool:
        with limited():
            given = torch.full((COUNT,), 1.0)
            work = dist.all_reduce(given, async_op=True)
        (tmp_path / "go").touch()
        work.wait()
        return is_full_of(given, 3.0)

    assert first_of(tmp_path, first, joins_when_told(tmp_path, dist.all_reduce))


def test_a_ddp_module_is_made_in_less_than_twice_its_parameters(tmp_path):
    budget = 14 << 18  # 3.5 MiB

    def made(rank: int) -> list[float]:
        torch.manual_seed(rank)
        with limited(budget):
            layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))  # 2 MiB
            dist.barrier()
            model = DistributedDataParallel(layers, bucket_cap_mb=1)
            return [p.sum().item() for p in model.parameters()]

    first, second = together(made, tmp_path)
    assert first == second


@pytest.mark.parametrize(
    ("has_trained", "has_views"),
    [
        (True, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((True, False), (False, True), (False, False))),
    ],
)
def test_a_ddp_module_from_before_the_session_trains_as_plainly(has_trained, has_views, tmp_path, monkeypatch):
    monkeypatch.setattr(kinds, "STEPS", 3)

    def job(number: int) -> list[Any]:
        runs = []
        for budget in (None, "30%", 3 << 20):
            model = DistributedDataParallel(kinds.network(), gradient_as_bucket_view=has_views)
            optimizer = kinds.adam(model.parameters())
            if has_trained:
                kinds.train(Rank(number, 2, tmp_path), model, optimizer)
            runs.append(run(lambda rank: kinds.train(rank, model, optimizer), Rank(number, 2, tmp_path), budget))  # noqa: B023
        return runs

    for plain, *within in together(job, tmp_path):
        for each in within:
            assert each.seen == plain.seen


def test_what_a_storage_frees_does_not_come_in(on_its_own):
    with limited() as session:
        tensor = torch.full((COUNT,), 1.0)
        tensor.add_(1)
        push_out()
        push_out(3 * COUNT)
        assert not is_resident(tensor)
        before = session.stats
        tensor.untyped_storage().resize_(0)
        after = session.stats
        assert (after.bytes_in, after.live_bytes) == (before.bytes_in, before.live_bytes - BYTES)
        assert after.tier_used_bytes < before.tier_used_bytes
        tensor.untyped_storage().resize_(BYTES)
        tensor.fill_(5)
        assert is_full_of(tensor, 5.0)
