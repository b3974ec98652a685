"""Sessions on a GPU: what they take over and give back, and what they leave to torch."""

from __future__ import annotations

import gc

import pytest
import torch

import memfit
from memfit.errors import BudgetError, MemfitError, UsageError
from on_gpu.helpers_gpu import MIB, Watch, train, workspace_bytes
from running.plainly import as_plainly, descend, same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_a_thousand_sessions_leave_nothing_behind():
    torch.ones(1 << 20).add_(1)
    with memfit.session(64 * MIB, device="cuda"):
        torch.ones(1 << 20).add_(1)
    gc.collect()
    watch = Watch()
    for _ in range(1000):
        with memfit.session(64 * MIB, device="cuda"):
            torch.ones(1 << 20).add_(1)
    torch.cuda.empty_cache()
    watch.look()
    assert watch.peak_bytes <= 2 * MIB
    assert torch.cuda.memory_allocated() < 32 * MIB


def test_tensors_made_before_move_in_and_come_back_with_their_bits():
    room = workspace_bytes() + 32 * MIB
    allocated = torch.cuda.memory_allocated()
    model = torch.nn.Linear(1024, 1024)
    before = [p.detach().cpu() for p in model.parameters()]
    with memfit.session(room, device="cuda") as session:
        assert session.stats.adopted_bytes >= sum(p.numel() * 4 for p in before)
        model(torch.ones(256, 1024)).sum().backward()
    assert same_bits([p.detach().cpu() for p in model.parameters()], before)
    assert model.weight.grad is not None and torch.isfinite(model.weight.grad).all()
    del model
    gc.collect()
    assert torch.cuda.memory_allocated() <= allocated + 32 * MIB  # of torch's own workspaces


def test_a_budget_that_cannot_be_met_is_torchs_out_of_memory_too():
    room = workspace_bytes() + 16 * MIB
    with memfit.session(room, device="cuda", map="never"):
        with pytest.raises(BudgetError) as caught:
            torch.ones(room + 16 * MIB, dtype=torch.uint8)
        assert isinstance(caught.value, torch.OutOfMemoryError)
        assert "budget" in str(caught.value) and "needs at least" in str(caught.value)
        torch.ones(1024).add_(1)  # and the session goes on


def test_memory_that_others_have_is_named_in_the_error():
    free = torch.cuda.mem_get_info()[0]
    pool = torch.cuda.MemPool()  # what lies in one is no session's
    with torch.cuda.use_mem_pool(pool):
        hog = torch.empty(free - 256 * MIB, dtype=torch.uint8)
    with memfit.session(free, device="cuda"), pytest.raises(MemfitError, match="has no more memory"):
        kept = [torch.ones(64 * MIB, dtype=torch.uint8) for _ in range(16)]
        del kept
    del hog


def test_other_streams_move_in_at_their_first_op_and_pools_and_raw_memory_stay_torchs():
    with memfit.session(64 * MIB, device="cuda") as session:
        live = session.stats.live_bytes
        with torch.cuda.stream(torch.cuda.Stream()):
            aside = torch.ones(MIB, dtype=torch.uint8)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = torch.ones(MIB, dtype=torch.uint8)
        assert session.stats.live_bytes - live == MIB  # the first of the two
        raw = torch.cuda.caching_allocator_alloc(4096)
        torch.cuda.caching_allocator_delete(raw)
        assert aside.sum().item() == pooled.sum().item() == MIB
        assert pooled.data_ptr() in {b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"]}
        torch.cuda.empty_cache()


def test_work_on_another_stream_reads_and_writes_the_right_bytes_while_everything_moves():
    side = torch.cuda.Stream()
    with memfit.session(workspace_bytes() + 24 * MIB, device="cuda"):
        source = torch.arange(MIB, dtype=torch.float32) % 1000  # sums of these are exact
        target = torch.zeros_like(source)
        for turn in range(20):
            pressure = [torch.full((MIB,), float(turn)) for _ in range(6)]  # pushes source and target out
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                target.add_(source)
            torch.cuda.current_stream().wait_stream(side)
            del pressure
        assert torch.equal(target, 20 * source)


def test_record_stream_keeps_bytes_until_the_stream_is_done():
    side = torch.cuda.Stream()
    with memfit.session(64 * MIB, device="cuda"):
        found = []
        for turn in range(50):
            tensor = torch.full((MIB,), float(turn))
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000)
                found.append(tensor.sum())
            tensor.record_stream(side)
            del tensor
            torch.full((MIB,), -1.0)
        torch.cuda.synchronize()
        assert [int(t.item()) for t in found] == [turn * MIB for turn in range(50)]


def test_a_graph_is_refused_in_a_session_and_works_after_it():
    x = torch.ones(1024)
    graph = torch.cuda.CUDAGraph()
    with memfit.session(64 * MIB, device="cuda"), pytest.raises(UsageError, match="graph"), torch.cuda.graph(graph):
        x.add_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
    graph.replay()
    assert torch.equal(y, x * 2)


def test_a_step_of_every_kind_of_optimizer_within_a_budget():
    for options in ({"fused": True}, {"foreach": True}, {"capturable": True}):

        def steps(options: dict[str, bool] = options) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model = torch.nn.Linear(512, 512)
            optimizer = torch.optim.AdamW(model.parameters(), **options)
            for _ in descend(optimizer, lambda: model(torch.randn(64, 512)).square().mean(), 6):
                pass
            return [p.detach().cpu() for p in model.parameters()]

        as_plainly(steps, workspace_bytes() + 20 * MIB, device="cuda")


def test_mixed_precision_with_a_gradient_scaler():
    def steps() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(16, 3, 64, 64)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return [p.detach().cpu() for p in model.parameters()]

    as_plainly(steps, "60%", device="cuda")


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_cudnn_may_look_for_the_fastest_algorithm(budget):
    torch.backends.cudnn.benchmark = True
    try:
        with memfit.session(budget, device="cuda"):
            model = torch.nn.Conv2d(3, 32, 5).half()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(8):
                loss = model(torch.randn(8, 3, 128, 128, dtype=torch.float16)).float().square().mean()
                loss.backward()
                optimizer.step()
            assert torch.isfinite(loss).item()
    finally:
        torch.backends.cudnn.benchmark = False


def test_training_goes_on_as_before_when_the_session_is_over():
    expected = train(steps=12)
    with memfit.session("60%", device="cuda"):
        train(steps=4)
    assert same_bits(train(steps=12), expected)
