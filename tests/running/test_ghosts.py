"""Storages of device meta are recorded as a CPU's are, and are otherwise none of the engine's business."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import memfit
from memfit.errors import InputError, UsageError
from memfit.ir import Category, Trace
from memfit.planning.lifetimes import peak_live
from memfit.running import engine
from memfit.running.session import Session
from memfit.tracing.roofline import ACCELERATORS

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("on_its_own")]
H100 = ACCELERATORS["h100"]
Step = Callable[[], Tensor]


def trained(model: nn.Module, inputs: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def pictures(device: str) -> Step:
    with torch.device(device):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.ConvTranspose2d(8, 6, 2, 2), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(6 * 16, 10),
        )  # fmt: skip
        return trained(model, torch.zeros(4, 3, 16, 16), torch.zeros(4, dtype=torch.long))


def words(device: str) -> Step:
    with torch.device(device):
        model = nn.Sequential(
            nn.Embedding(50, 16), nn.LayerNorm(16), nn.Linear(16, 24), nn.GELU(), nn.Dropout(0.5), nn.Linear(24, 12),
            nn.Softmax(-1), nn.Flatten(0, 1),
        )  # fmt: skip
        return trained(model, torch.zeros(4, 9, dtype=torch.long), torch.zeros(36, dtype=torch.long))


def lasting(trace: Trace) -> list[int]:
    """Storages that are more than one op's scratch: a live trace has kernels' scratch, and numbers made tensors."""
    return [i for i, s in enumerate(trace.storages) if s.free > s.alloc + 1 or s.born_before]


def summary(trace: Trace) -> list[object]:
    """Names, phases and the sizes that each op reads and writes; lifetimes and categories of the storages."""
    kept = set(lasting(trace))

    def sizes(ids: tuple[int, ...]) -> list[int]:
        return sorted(trace.storages[i].size_bytes for i in ids if i in kept)

    ops = [(op.name, op.phase, sizes(op.reads), sizes(op.writes)) for op in trace.ops]
    lives = Counter((s.size_bytes, s.alloc, s.free, s.category) for s in (trace.storages[i] for i in kept))
    return [*ops, lives]


@pytest.mark.parametrize("net", [pictures, words])
def test_a_net_on_meta_has_the_trace_of_the_same_net_on_cpu_but_for_scratch(net: Callable[[str], Step]):
    on_meta, live = memfit.record_meta(net("meta")), memfit.record(net("cpu"))
    assert len(on_meta.ops) == len(live.ops)
    for mine, other in zip(summary(on_meta), summary(live), strict=True):
        assert mine == other


def test_what_an_op_needs_at_once_is_what_it_leaves_behind():
    trace = memfit.record_meta(pictures("meta"))
    conv = next(op for op in trace.ops if op.name == "aten::conv2d")
    assert conv.workspace_bytes == 4 * 4 * 8 * 16 * 16
    assert all(s.free > s.alloc + 1 or s.free_tick > trace.ops[s.alloc].first_tick for s in trace.storages)


def test_durations_and_the_device_are_the_accelerators():
    trace = memfit.record_meta(pictures("meta"), "a100")
    assert trace.device == "meta, timed as A100 SXM 80 GB"
    assert {op.duration_us for op in trace.ops} == {0.0, ACCELERATORS["a100"].launch_us}  # views, and small kernels
    with torch.device("meta"):
        a = torch.empty(8192, 8192)
    torch.set_float32_matmul_precision("high")
    try:
        (fast,) = memfit.record_meta(lambda: a @ a).ops
    finally:
        torch.set_float32_matmul_precision("highest")
    (slow,) = memfit.record_meta(lambda: a @ a).ops
    assert fast.duration_us == pytest.approx(2 * 8192**3 / (494.5e12 * 0.6) * 1e6, rel=1e-3)
    assert slow.duration_us == pytest.approx(2 * 8192**3 / (67e12 * 0.6) * 1e6, rel=1e-3)


def test_a_model_larger_than_any_memory_is_recorded_and_counts_for_nothing():
    with torch.device("meta"):
        model, inputs = nn.Linear(1 << 20, 1 << 20), torch.zeros(1 << 10, 1 << 20)
    with Session(None, "ram", record=False, accelerator=H100) as session:
        trace = session.record_span(lambda: model(inputs).sum().backward())
        assert session.stats.peak_live_bytes < 1 << 16
    weight_bytes = 4 << 40
    assert peak_live(trace)[0] > 2 * weight_bytes  # with its gradient
    assert sum(s.size_bytes == weight_bytes for s in trace.storages) == 2


def test_ghosts_die_when_their_storages_do():
    def step() -> None:
        kept = torch.empty(100, device="meta")
        (kept + 1).mul_(2)
        kept.sigmoid_()

    trace = memfit.record_meta(step)
    assert [(s.size_bytes, s.alloc, s.free) for s in trace.storages] == [(400, 0, 4), (400, 1, 3)]
    assert trace.ticks == 4 and trace.storages[1].free_tick < trace.storages[0].free_tick


def test_a_resize_is_a_new_storage():
    def step() -> None:
        x = torch.empty(0, device="meta")
        x.resize_(10)
        x.add_(1)
        x.resize_(1000)
        x.add_(1)

    trace = memfit.record_meta(step)
    assert [s.size_bytes for s in trace.storages] == [40, 4000]
    assert [op.writes for op in trace.ops if op.name == "aten::add_.Tensor"] == [(0,), (1,)]


def test_ghosts_and_real_tensors_live_side_by_side():
    ghost = words("meta")
    with Session(None, "ram", record=False, accelerator=H100) as session:
        real = torch.full((1000,), 3.0)
        ghost()

        def both() -> None:
            ghost()
            real.mul_(2)
            real.add_(torch.ones(1000))

        trace = session.record_span(both)
        assert real.sum().item() == 7000
        assert session.stats.live_bytes >= 4000
    assert real.sum().item() == 7000
    assert 4000 not in {s.size_bytes for s in trace.storages}
    assert [op.duration_us for op in trace.ops if op.name == "aten::ones"] == [0]


def test_a_session_within_a_budget_sees_no_ghosts():
    with memfit.session("1MiB", "ram") as session:
        step = words("meta")
        kept = torch.empty(1 << 30, device="meta")
        for _ in range(3):
            step()
        assert session.stats.live_bytes < 1 << 16
        assert max(s.size_bytes for s in session.trace.storages) < 1 << 16
    assert kept.shape == (1 << 30,)


def test_ghosts_outlive_their_session_and_are_known_to_the_next():
    made: list[Tensor] = []
    first = memfit.record_meta(lambda: made.append(torch.empty(100, device="meta")))
    assert [s.size_bytes for s in first.storages] == [400, 400]  # the first run's and the second's
    made.append(made[0] + made[1])  # between sessions
    del made[1]
    gc.collect()
    second = memfit.record_meta(lambda: made[0].add_(made[1]))
    assert sorted(s.size_bytes for s in second.storages if s.born_before) == [400, 400]
    with memfit.session(None, "ram"):
        made.clear()  # their deaths are no business of a session that does not watch
    assert not engine.load().active()


def test_the_optimizer_names_parameters_gradients_and_state():
    trace = memfit.record_meta(pictures("meta"))
    sizes = Counter((s.category, s.size_bytes) for s in trace.storages if s.size_bytes == 4 * 3 * 8 * 9)
    named = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
    assert sizes == Counter({(category, 864): 1 for category in named})


def test_a_name_that_is_none_is_refused_and_so_is_a_second_session():
    with pytest.raises(InputError, match="no accelerator"):
        memfit.record_meta(lambda: None, "abacus")
    with memfit.session(None, "ram"), pytest.raises(UsageError):
        memfit.record_meta(lambda: None)
