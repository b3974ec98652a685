"""What must hold of several streams. Each runs in a process of its own, on a simulated GPU (test_cuda_sim.py)."""

from __future__ import annotations

import threading

import torch

import memfit
from cuda_sim.simulator import MIB, Gpu
from memfit.running import engine

LATE = 300  # ms


def an_op_in_another_stream_sees_what_came_before(gpu: Gpu) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with memfit.session(20 * MIB, device="cuda"):
        x = torch.ones(1000, device="cuda")
        gpu.pause(main, LATE)
        x.mul_(3)
        with torch.cuda.stream(side):
            y = x + 1  # without waiting for the other stream: the session does
        gpu.pause(side, LATE)
        with torch.cuda.stream(side):
            x.mul_(2)
        x.add_(1)
        side.synchronize()
        assert y.cpu().tolist() == [4] * 1000 and x.cpu().tolist() == [7] * 1000


def an_op_within_an_op_sees_what_another_thread_has_done_since_that_began(gpu: Gpu) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    library = torch.library.Library("of_streams", "DEF")
    library.define("sum_with_other(Tensor x) -> Tensor")

    def sum_with_other(x: torch.Tensor) -> torch.Tensor:
        worker = threading.Thread(target=change_other)
        worker.start()
        worker.join()
        return x + other

    def change_other() -> None:
        gpu.pause(main, LATE)
        other.add_(1)

    library.impl("sum_with_other", sum_with_other, "CUDA")
    with memfit.session(20 * MIB, device="cuda"):
        x, other = torch.ones(1000, device="cuda"), torch.ones(1000, device="cuda")
        with torch.cuda.stream(side):
            found = torch.ops.of_streams.sum_with_other(x)
        side.synchronize()
        assert found.cpu().tolist() == [3] * 1000


def memory_of_another_stream_is_torchs_own(gpu: Gpu) -> None:
    side = torch.cuda.Stream()
    with memfit.session(20 * MIB, device="cuda") as session:
        own = session.stats.resident_bytes
        with torch.cuda.stream(side):
            x = torch.empty(1000, device="cuda")
        assert session.stats.resident_bytes == own and torch.cuda.memory_allocated() >= 4000
        side.synchronize()
        x.fill_(1)  # from now on the session's
        assert session.stats.resident_bytes == own + 4096
        assert x.sum().item() == 1000


def what_another_stream_is_still_writing_is_adopted_afterwards(gpu: Gpu) -> None:
    side = torch.cuda.Stream()
    early = torch.ones(1000, device="cuda")
    torch.cuda.synchronize()
    gpu.pause(side, LATE)
    with torch.cuda.stream(side):
        early.mul_(3)
    with memfit.session(20 * MIB, device="cuda"):
        assert early.sum().item() == 3000
        with torch.cuda.stream(side):
            late = torch.empty(1000, device="cuda")
            gpu.pause(side, LATE)
            gpu.fill(late.data_ptr(), 0, 4000, side)  # by no op: nobody sees it
            late = late + 1
        torch.cuda.current_stream().wait_stream(side)
        assert late.sum().item() == 1000


def adopted_memory_is_not_used_again_before_it_is_read(gpu: Gpu) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with memfit.session(20 * MIB, device="cuda"):
        with torch.cuda.stream(side):
            x = torch.empty(MIB, device="cuda")
            gpu.fill(x.data_ptr(), 0, 4 * MIB, side)
        main.wait_stream(side)
        gpu.pause(main, LATE)
        x.add_(5)  # moves it, in the stream that is late
        with torch.cuda.stream(side):
            y = torch.empty(MIB, device="cuda")
            gpu.fill(y.data_ptr(), 0xFF, 4 * MIB, side)
        assert x.sum().item() == 5 * MIB


def what_comes_in_by_a_door_is_there_for_the_stream_that_asks(gpu: Gpu) -> None:
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    with memfit.session(20 * MIB, device="cuda"):
        early = torch.full((MIB,), 3.0, device="cuda")
        others = [torch.ones(MIB, device="cuda") for _ in range(5)]  # it leaves
        with torch.cuda.stream(side):
            fresh, copied = (torch.empty(MIB, device="cuda") for _ in range(2))  # of torch's own allocator
            gpu.pause(main, LATE)
            gpu.fill(fresh.data_ptr(), 0, 4 * MIB, side)  # it has moved into the arena, in the stream that is late
            gpu.copy(copied.data_ptr(), early.data_ptr(), 4 * MIB, side)  # and this has come back
        main.wait_stream(side)
        assert fresh.abs().amax().item() == 0 and copied.amin().item() == copied.amax().item() == 3
        del others


def memory_recorded_in_a_stream_is_not_used_again_before_it(gpu: Gpu) -> None:
    side = torch.cuda.Stream()
    with memfit.session(20 * MIB, device="cuda"):
        x, y = torch.ones(MIB, device="cuda"), torch.zeros(MIB, device="cuda")
        where, to = x.data_ptr(), y.data_ptr()
        side.wait_stream(torch.cuda.current_stream())
        gpu.pause(side, LATE)
        gpu.copy(to, where, 4 * MIB, side)
        x.record_stream(side)
        del x
        z = torch.full((MIB,), 9.0, device="cuda")
        assert z.data_ptr() == where
        side.synchronize()
        assert y.sum().item() == MIB and z.sum().item() == 9 * MIB


def what_is_recorded_in_the_stream_it_is_made_in_may_leave(gpu: Gpu) -> None:
    with memfit.session(20 * MIB, device="cuda"):
        x, y = torch.ones(MIB, device="cuda"), torch.ones(MIB, device="cuda")
        x.record_stream(torch.cuda.current_stream())
        y.record_stream(torch.cuda.Stream())
        assert engine.load().may_leave(x) and not engine.load().may_leave(y)


def a_collective_in_the_stream_of_its_op_holds_nothing(gpu: Gpu) -> None:
    with memfit.session(20 * MIB, device="cuda", moves="swap") as session:
        x = torch.ones(MIB, device="cuda")
        torch.ops.c10d.sum_of_two_([x])
        assert session.stats.collective_bytes == session.stats.pinned_bytes == 0
        pressure = [torch.full((MIB,), float(n), device="cuda") for n in range(6)]
        assert session.stats.bytes_out > 0
        assert x.amin().item() == x.amax().item() == 2
        del pressure


def what_an_op_elsewhere_frees_is_used_again_after_it(gpu: Gpu) -> None:
    side = torch.cuda.Stream()
    for seed in range(20):
        gpu.delay(3000, seed)
        with memfit.session(16 * MIB, device="cuda"):
            total = torch.zeros(MIB // 4, device="cuda")
            for i in range(12):
                x = torch.full((MIB // 4,), float(i), device="cuda")
                with torch.cuda.stream(side):
                    y = x + total
                    del x
                torch.cuda.current_stream().wait_stream(side)
                total = torch.full((MIB // 4,), 1.0, device="cuda") + y
            assert total.amin().item() == total.amax().item() == 66 + 12
    gpu.delay(0)
