"""What must hold of a GPU's memory. Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py)."""

from __future__ import annotations

import copy
import faulthandler
import gc
import io
import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import memfit
from cuda_sim.simulator import MIB, Gpu
from memfit.errors import UsageError
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from running.pressure import is_full_of

KIB256 = 1 << 18


def numbered(count: int, size_bytes: int = MIB) -> list[Tensor]:
    """Return tensors on the GPU, the n-th full of n."""
    return [torch.full((size_bytes // 4,), float(i), device="cuda") for i in range(count)]


def assert_numbered(tensors: list[Tensor]) -> None:
    assert [t.amin().item() for t in tensors] == [t.amax().item() for t in tensors] == list(range(len(tensors)))


def used_after_cleaning(gpu: Gpu) -> int:
    gc.collect()
    torch.cuda.empty_cache()
    return gpu.count("in_use")


def the_drivers_memory_stays_within_the_budget(gpu: Gpu) -> None:
    for budget in (4 * MIB, 7 * MIB, 20 * MIB):
        assert used_after_cleaning(gpu) == 0
        gpu.reset_peak()
        with memfit.session(budget, device="cuda") as session:
            tensors = numbered(30)
            assert_numbered(tensors)
            assert gpu.count("peak") <= budget
            stats = session.stats
        assert stats.evictions > 0 and stats.peak_footprint_bytes <= budget
        assert_numbered(tensors)
        del tensors


def torch_s_snapshot_and_statistics_have_the_arena(gpu: Gpu) -> None:
    """As one more segment, whose blocks are the storages that lie there now."""
    torch.ones(1, device="cuda")
    outside = {segment["address"] for segment in torch.cuda.memory_snapshot()}
    with memfit.session(8 * MIB, device="cuda") as session:
        kept = numbered(20)
        del kept[19], kept[17]
        pinned = {tensor.data_ptr(): MIB for tensor in kept[:2]}
        (arena,) = (segment for segment in torch.cuda.memory_snapshot() if segment["address"] not in outside)
        address, found = arena["address"], {}
        for block in arena["blocks"]:
            assert block["address"] == address
            address += block["size"]
            if block["state"] == "active_allocated":
                found[block["address"]] = block["requested_size"]
        stats, torch_s = session.stats, torch.cuda.memory_stats()
        assert address == arena["address"] + arena["total_size"] and arena["total_size"] >= stats.footprint_bytes
        assert arena["allocated_size"] == stats.resident_bytes == torch_s["allocated_bytes.large_pool.current"]
        assert (
            torch_s["allocated_bytes.all.current"] - stats.resident_bytes
            == torch_s["allocated_bytes.small_pool.current"]
        )
        assert (
            torch_s["allocation.large_pool.current"] == len(found) >= 3 and torch_s["segment.large_pool.current"] == 1
        )
        assert pinned.items() <= found.items()
    assert arena["address"] not in {segment["address"] for segment in torch.cuda.memory_snapshot()}


def tensors_from_before_are_governed_and_come_back(gpu: Gpu) -> None:
    tensors = numbered(10)
    views = [tensor[5:] for tensor in tensors]
    with memfit.session(5 * MIB, device="cuda") as session:
        assert session.stats.adopted_bytes == 10 * MIB
        assert gpu.count("in_use") <= 6 * MIB
        assert_numbered(views)
        torch._foreach_mul_(tensors, 1)
    assert_numbered(views)
    del tensors, views
    assert used_after_cleaning(gpu) == 0


def a_budget_that_is_too_small_is_an_error(gpu: Gpu) -> None:
    with pytest.raises(memfit.BudgetError, match="aten::add"), memfit.session(4 * MIB, device="cuda", map="never"):
        a, b = numbered(2, 2 * MIB)
        a + b
    with (
        pytest.raises(memfit.BudgetError, match="one page of the device.s memory, 2.00 MiB") as caught,
        memfit.session(MIB, device="cuda"),
    ):
        pass
    assert caught.value.required_bytes == 2 * MIB
    with memfit.session(2 * MIB, device="cuda"):
        assert_numbered(numbered(3, KIB256))


def a_large_gpu_is_mapped_in_few_pieces(gpu: Gpu) -> None:
    """Of the driver's pages up to 8 GiB, and of 32 MiB beyond; those that are half in use stay.

    What is kept free for small storages has nothing behind it.
    """
    gpu.forget_values()
    budget = (9 << 30) + 5 * MIB
    with memfit.session(budget, "ram", device="cuda") as session:
        tensors = [torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(91)]
        end = -(-session.stats.footprint_bytes // (32 * MIB)) * 32 * MIB
        unmapped = end - gpu.count("peak")
        assert end <= budget and 0 <= unmapped <= budget // 256
        assert gpu.count("pieces") == ((8 << 30) - unmapped) // (2 * MIB) + (end - (8 << 30)) // (32 * MIB)
        assert session.stats.evictions == 0
        tensors += [torch.zeros(100 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
        assert session.stats.discards > 0 and gpu.count("peak") <= budget
    assert gpu.count("pieces") == 0
    del tensors
    assert used_after_cleaning(gpu) == 0


def a_gpu_that_others_fill_is_an_error(gpu: Gpu) -> None:
    others = gpu.take(torch.cuda.mem_get_info()[0] - 8 * MIB)
    with memfit.session(20 * MIB, device="cuda"):
        tensors = numbered(7, MIB - (MIB >> 4))  # a page holds two, beside what the session has itself
        with pytest.raises(memfit.TierError, match="no more memory: the arena has 8388608 of 20971520 bytes"):
            torch.zeros(KIB256 * 4, device="cuda")
        del tensors[-2:]
        tensors.append(torch.full((KIB256,), 5.0, device="cuda"))
        assert_numbered(tensors)
    gpu.give_back(others)
    assert_numbered(tensors)


def a_full_gpu_is_adopted_and_restored(gpu: Gpu) -> None:
    """Nearly the whole of it is in use before: there is no room for two copies."""
    tensors = numbered(36)
    for _ in range(3):
        with memfit.session(30 * MIB, device="cuda"):
            assert_numbered(tensors)
            assert gpu.count("peak") <= 40 * MIB
        assert_numbered(tensors)


def what_a_full_gpu_cannot_hold_is_named(gpu: Gpu) -> None:
    with pytest.raises(memfit.TierError, match="out of memory") as caught, memfit.session(24 * MIB, device="cuda"):
        tensors = numbered(60)
        assert_numbered(tensors)
    assert "frame #" not in str(caught.value)
    del tensors, caught
    gc.collect()
    with memfit.session(24 * MIB, device="cuda"):
        assert_numbered(numbered(30))


def what_a_full_gpu_cannot_hold_is_there_in_the_next_session(gpu: Gpu) -> None:
    """As soon as so much is freed that a session can begin."""
    with pytest.raises(memfit.TierError) as caught, memfit.session(24 * MIB, device="cuda", moves="swap"):
        tensors = dict(enumerate(numbered(60)))
    assert "in a session" in caught.value.remedy
    del caught
    for number in range(25):
        del tensors[number]
    gc.collect()
    torch.cuda.empty_cache()
    with memfit.session(24 * MIB, device="cuda"):
        assert all(is_full_of(tensor, number) for number, tensor in tensors.items())


def a_thousand_sessions_leave_nothing_behind(gpu: Gpu) -> None:
    x = torch.ones(KIB256, device="cuda")
    counts = []
    for number in range(1000):
        with memfit.session(6 * MIB, device="cuda"):
            for tensor in [x + i for i in range(8)]:
                tensor.mul_(2)
        del tensor
        if number in (5, 999):
            counts.append([used_after_cleaning(gpu), *map(gpu.count, ("locked", "events", "streams"))])
    assert counts[0] == counts[1]
    assert x.sum().item() == KIB256


def sessions_leave_nothing_behind(gpu: Gpu) -> None:
    for gb_per_s in (1e6, 1e-6):  # of a link over which everything is copied, and nothing that can be made again
        counts = []
        for _ in range(40):
            with memfit.session(6 * MIB, device="cuda") as session:
                engine.load().allow_drops(gb_per_s, gb_per_s)
                assert_numbered(numbered(8))
            assert (session.stats.discards > 0) == (gb_per_s < 1)
            counts.append([used_after_cleaning(gpu), *map(gpu.count, ("locked", "events", "streams"))])
        assert counts[3] == counts[-1]


def an_exception_ends_a_session(gpu: Gpu) -> None:
    for _ in range(3):
        with pytest.raises(KeyError), memfit.session(6 * MIB, device="cuda"):
            tensors = numbered(8)
            raise KeyError
        assert_numbered(tensors)


def raw_memory_is_governed(gpu: Gpu) -> None:
    side = torch.cuda.Stream()
    with memfit.session(20 * MIB, device="cuda") as session:
        own = session.stats.resident_bytes
        inside = torch.cuda.caching_allocator_alloc(MIB)
        outlives = torch.cuda.caching_allocator_alloc(MIB)
        assert session.stats.resident_bytes == own + 2 * MIB
        elsewhere = torch.cuda.caching_allocator_alloc(MIB, stream=side)
        assert session.stats.resident_bytes == own + 2 * MIB
        torch.cuda.caching_allocator_delete(inside)
        torch.cuda.caching_allocator_delete(elsewhere)
        assert session.stats.resident_bytes == own + MIB
    torch.cuda.caching_allocator_delete(outlives)
    assert_numbered(numbered(3))
    with memfit.session(20 * MIB, device="cuda"):
        pass
    assert used_after_cleaning(gpu) == 0


def memory_pools_are_left_alone(gpu: Gpu) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        early = torch.ones(1000, device="cuda")
    where = early.data_ptr()
    with memfit.session(20 * MIB, device="cuda") as session:
        own = session.stats.resident_bytes
        with torch.cuda.use_mem_pool(pool):
            late = torch.ones(1000, device="cuda")
            late.add_(1)
        assert session.stats.resident_bytes == own
        assert (early + late).sum().item() == 3000
        assert early.data_ptr() == where
        assert any(late.data_ptr() in range(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot())


def torchs_own_questions_are_answered(gpu: Gpu) -> None:
    with memfit.session(20 * MIB, device="cuda"):
        x = torch.ones(MIB // 4, device="cuda")
        assert torch.cuda.memory_allocated() >= MIB
        assert torch.cuda.memory_stats()["allocated_bytes.all.current"] >= MIB
        assert isinstance(torch.cuda.memory_snapshot(), list) and torch.cuda.memory_summary()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.max_memory_allocated() >= MIB
        torch.cuda.memory._record_memory_history()
        x.add_(1)
        assert torch.cuda.memory._snapshot()["segments"] is not None
        torch.cuda.memory._record_memory_history(enabled=None)
        torch.cuda.set_per_process_memory_fraction(0.9)
        assert torch.cuda.mem_get_info()[1] == 1 << 30


def torchs_history_of_lines_does_not_wait_for_who_waits_for_the_session(gpu: Gpu) -> None:
    """It asks the interpreter, in the midst of the session; other threads have that when they ask the session."""
    faulthandler.dump_traceback_later(100, exit=True)
    torch.cuda.memory._record_memory_history(stacks="all")
    tensors, over = numbered(20), threading.Event()

    def work() -> None:
        while not over.is_set():
            torch.empty(1000, device="cuda")

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with memfit.session(30 * MIB, device="cuda"):  # what the tensors had is given back after two seconds, by an op
            until = time.monotonic() + 3
            while time.monotonic() < until:
                for tensor in tensors:
                    tensor.add_(0)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert_numbered(tensors)
    torch.cuda.memory._record_memory_history(enabled=None)
    faulthandler.cancel_dump_traceback_later()


def graphs_are_refused(gpu: Gpu) -> None:
    graph = torch.cuda.CUDAGraph()
    with memfit.session(20 * MIB, device="cuda"):
        with pytest.raises(UsageError, match="neither captured nor replayed"):
            graph.capture_begin()
        with pytest.raises(UsageError):
            graph.replay()


def copies_and_files_hold_the_same_bytes(gpu: Gpu) -> None:
    with memfit.session(6 * MIB, device="cuda"):
        tensors = numbered(8)
        file = io.BytesIO()
        torch.save(tensors, file)
        file.seek(0)
        assert_numbered(torch.load(file))
        assert_numbered(copy.deepcopy(tensors))
        assert [tensor[:2].tolist() for tensor in tensors] == [[float(i)] * 2 for i in range(8)]
        assert [tensor.cpu().numpy().max() for tensor in tensors] == list(range(8))
        pinned = torch.ones(1000).pin_memory()
        assert pinned.to("cuda", non_blocking=True).sum().item() == 1000
        shared = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensors[3]))
        assert shared.data_ptr() == tensors[3].data_ptr()
        with pytest.raises(RuntimeError, match="cannot be shared with another process"):
            tensors[1].untyped_storage()._share_cuda_()
        assert_numbered(tensors)


def tiers_that_fail_are_an_error(gpu: Gpu) -> None:
    for tier in (
        DisturbedTier("ram", corrupt_read=3, checked=True),
        DisturbedTier("ram", fail_write=3),
        DisturbedTier("disk", "/tmp", fail_read=2),
    ):
        with pytest.raises(memfit.TierError), memfit.session(6 * MIB, tier, device="cuda"):
            tensors = numbered(12)
            for _ in range(3):
                assert_numbered(tensors)


def memory_that_cannot_be_locked_is_used_all_the_same(gpu: Gpu) -> None:
    gpu.allow_locking(8 * MIB)
    with warnings.catch_warnings(record=True) as caught, memfit.session(6 * MIB, device="cuda"):
        warnings.simplefilter("always")
        tensors = numbered(40)
        assert_numbered(tensors)
    assert_numbered(tensors)
    assert any("does not lock host memory" in str(warning.message) for warning in caught)


def memory_that_the_driver_alone_may_lock_is_locked(gpu: Gpu) -> None:
    gpu.refuse_registering()
    with warnings.catch_warnings(record=True) as caught, memfit.session(6 * MIB, device="cuda"):
        warnings.simplefilter("always")
        tensors = numbered(40)
        assert gpu.count("locked") >= 256 * MIB
        assert_numbered(tensors)
    assert_numbered(tensors)
    assert gpu.count("locked") < 256 * MIB and not [w for w in caught if "lock" in str(w.message)]


def memory_is_locked_before_it_is_used(gpu: Gpu) -> None:
    """The first bytes wait for their piece of 256 MiB; those after it find theirs."""
    gpu.lock_slowly(1e9)
    with memfit.session(6 * MIB, device="cuda"):
        tensors = numbered(8)
        locked_since = time.monotonic()
        while gpu.count("locked") < 512 * MIB:
            assert time.monotonic() < locked_since + 60
            time.sleep(0.01)
        assert_numbered(tensors)
    assert gpu.count("locked") < 256 * MIB


def threads_share_the_budget(gpu: Gpu) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            tensors = [torch.full((KIB256,), 10.0 * number + i, device="cuda") for i in range(6)]
            for _ in range(20):
                for tensor in tensors:
                    tensor.add_(1)
            assert [t.amax().item() for t in tensors] == [10.0 * number + i + 20 for i in range(6)]
        except BaseException as error:
            errors.append(error)

    gpu.delay(50, 1)
    with memfit.session(12 * MIB, device="cuda") as session:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors and session.stats.evictions > 0


def an_op_that_a_verified_one_calls_is_believed_to_leave_what_it_reads_as_it_was(gpu: Gpu) -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("relu", lambda x: torch.clamp_min(torch.negative(torch.negative(x)), 0), "CUDA")
    with memfit.session(6 * MIB, device="cuda", plan=False) as session:
        x = torch.ones(KIB256, device="cuda")

        def is_clean_after(op: Callable[[Tensor], Tensor]) -> bool:
            torch.zeros(11 * MIB // 8, device="cuda")  # and x leaves
            op(x)
            drops = session.stats.drops
            torch.zeros(11 * MIB // 8, device="cuda")
            return session.stats.drops > drops

        assert is_clean_after(torch.neg) and is_clean_after(torch.relu)
        assert not is_clean_after(torch.negative)  # not verified, and on its own
        assert is_clean_after(torch.relu)
