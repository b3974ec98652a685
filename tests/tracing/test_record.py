"""What a recorded iteration of a small, known model says."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.errors import UsageError
from memfit.ir import Category, Op, Phase, Trace
from memfit.planning.lifetimes import peak_live
from memfit.running import engine
from running.helpers_training import others_hidden

pytestmark = pytest.mark.timeout(120)
torch.set_num_threads(1)


class Perceptron:
    """Two layers, batch 32, with momentum. All sizes differ, so that a storage is known by its size."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(10, 20), nn.Linear(20, 3)
        parameters = [*self.first.parameters(), *self.second.parameters()]
        self.optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=False)

    def step(self) -> None:
        x = torch.randn(32, 10)
        self.optimizer.zero_grad()
        h = self.first(x)
        h = torch.tanh(h)
        y = self.second(h)
        y.add_(y)
        rows = y.view(-1)
        loss = rows.square().mean()
        loss.backward()
        self.optimizer.step()


WEIGHT_1, BIAS_1, WEIGHT_2, BIAS_2 = 4 * 200, 4 * 20, 4 * 60, 4 * 3
BATCH, HIDDEN, OUT, LOSS = 4 * 320, 4 * 640, 4 * 96, 4


@pytest.fixture(autouse=True)
def on_its_own() -> Iterator[None]:
    with others_hidden():
        yield


@pytest.fixture(scope="module")
def trace() -> Trace:
    with others_hidden():
        return memfit.record(Perceptron().step)


def line(part: str) -> str:
    """The source of the only line of `Perceptron.step` that has `part`."""
    lines, start = inspect.getsourcelines(Perceptron.step)
    (number,) = [start + offset for offset, text in enumerate(lines) if part in text]
    return f"{os.path.relpath(__file__)}:{number}"


def sizes(trace: Trace, storages: tuple[int, ...]) -> list[int]:
    return sorted(trace.storages[s].size_bytes for s in storages)


def ops_at(trace: Trace, part: str, phase: Phase) -> list[Op]:
    return [op for op in trace.ops if op.source == line(part) and op.phase is phase]


def test_forward_ops_are_in_order_with_their_names(trace):
    names = [op.name for op in trace.ops if op.phase is Phase.FORWARD]
    expected = ["randn", "linear", "tanh", "linear", "add_.Tensor", "view", "square", "mean", "ones_like"]
    assert names == [f"aten::{name}" for name in expected]


def test_forward_ops_carry_the_line_that_called_them(trace):
    lines = [op.source for op in trace.ops if op.phase is Phase.FORWARD]
    parts = ["randn", "self.first(x)", "tanh", "self.second(h)", "add_", "view", "square", "square", "backward()"]
    assert lines == [line(part) for part in parts]


def test_backward_ops_carry_the_line_of_their_forward_op(trace):
    backward = [op for op in trace.ops if op.phase is Phase.BACKWARD]
    mm = [op.source for op in backward if op.name == "aten::mm"]
    assert mm == [line("self.second(h)")] * 2 + [line("self.first(x)")]
    assert [op.source for op in backward if op.name == "aten::tanh_backward"] == [line("tanh")]


def test_optimizer_ops_carry_the_line_of_the_step_and_update_each_parameter(trace):
    updates = ops_at(trace, "optimizer.step()", Phase.OPTIMIZER)
    assert {op.phase for op in trace.ops[trace.ops.index(updates[0]) :]} == {Phase.OPTIMIZER}
    written = [sizes(trace, op.writes) for op in updates if op.name == "aten::add_.Tensor"]
    assert sorted(written) == sorted([[n] for n in (WEIGHT_1, BIAS_1, WEIGHT_2, BIAS_2) for _ in range(2)])


def test_reads_and_writes_of_an_op_that_makes_its_output(trace):
    first, second = [op for op in trace.ops if op.name == "aten::linear"]
    assert sizes(trace, first.reads) == sorted([WEIGHT_1, BIAS_1, BATCH]) and sizes(trace, first.writes) == [HIDDEN]
    assert sizes(trace, second.reads) == sorted([WEIGHT_2, BIAS_2, HIDDEN]) and sizes(trace, second.writes) == [OUT]


def test_an_op_in_place_reads_and_writes_the_same_storage(trace):
    (op,) = ops_at(trace, "add_", Phase.FORWARD)
    assert op.reads == op.writes and sizes(trace, op.writes) == [OUT]
    assert op.workspace_bytes == 0


def test_a_view_is_no_access_and_shares_the_storage_of_its_base(trace):
    (view,) = ops_at(trace, "view", Phase.FORWARD)
    assert view.reads == view.writes == ()
    square = next(op for op in trace.ops if op.name == "aten::square")
    (add,) = ops_at(trace, "add_", Phase.FORWARD)
    assert square.reads == add.writes


def test_each_role_has_its_storages(trace):
    def of(category: Category) -> list[int]:
        return sorted(s.size_bytes for s in trace.storages if s.category is category)

    parameters = sorted([WEIGHT_1, BIAS_1, WEIGHT_2, BIAS_2])
    assert of(Category.PARAMETER) == parameters
    assert of(Category.OPTIMIZER_STATE) == parameters
    assert BATCH in of(Category.INPUT)
    assert [size for size in of(Category.ACTIVATION) if size > 64] == sorted([HIDDEN, HIDDEN, OUT, OUT])
    gradients = of(Category.GRADIENT)
    assert all(gradients.count(size) >= 2 for size in parameters)  # those zero_grad drops, and the new ones
    assert all(s.alloc == s.free - 1 for s in trace.storages if s.category is Category.SCRATCH)


def test_parameters_and_momenta_recur_and_gradients_are_made_anew(trace):
    for storage in trace.storages:
        kept = storage.category in (Category.PARAMETER, Category.OPTIMIZER_STATE)
        assert trace.recurs(storage) == kept
    dropped = [s for s in trace.storages if s.category is Category.GRADIENT and s.born_before]
    assert len(dropped) == 4 and all(s.free <= 1 for s in dropped)


def test_activations_live_from_the_op_that_makes_them_to_the_last_that_needs_them(trace):
    tanh = next(i for i, op in enumerate(trace.ops) if op.name == "aten::tanh")
    (before,), (after,) = trace.ops[tanh].reads, trace.ops[tanh].writes
    assert trace.storages[before].free == tanh + 1  # `h` is bound to the next
    backward = next(i for i, op in enumerate(trace.ops) if op.name == "aten::tanh_backward")
    assert after in trace.ops[backward].reads
    assert trace.storages[after].free > backward
    assert trace.storages[after].source == line("tanh")


def test_every_access_falls_into_the_storages_lifetime(trace):
    for index, op in enumerate(trace.ops):
        assert all(trace.storages[s].alloc <= index < trace.storages[s].free for s in (*op.reads, *op.writes))


def test_the_workspace_is_what_the_op_allocates(trace):
    linear, tanh, square = (
        next(op for op in trace.ops if op.name == f"aten::{n}") for n in ("linear", "tanh", "square")
    )
    assert (linear.workspace_bytes, tanh.workspace_bytes, square.workspace_bytes) == (HIDDEN, HIDDEN, OUT)


def test_a_random_op_reads_nothing_and_durations_are_plausible(trace):
    assert trace.ops[0].reads == () and sizes(trace, trace.ops[0].writes) == [BATCH]
    assert all(0 < op.duration_us < 1e6 for op in trace.ops)


def test_the_trace_says_where_it_comes_from(trace):
    assert (trace.torch_version, trace.device, trace.alignment) == (torch.__version__, "cpu", 64)
    assert trace.pinned_bytes == 0


def test_the_peak_is_what_the_engine_measured():
    model = Perceptron()
    with memfit.session(None) as session:
        model.step()
        engine.load().reset_peaks()
        model.step()
        measured = session.stats
    assert peak_live(session.trace)[0] + session.trace.pinned_bytes == measured.peak_live_bytes
    assert peak_live(session.trace, aligned=True)[0] == measured.peak_resident_bytes


def test_a_session_finds_the_same_iteration_as_record():
    recorded = memfit.record(Perceptron().step)
    model = Perceptron()
    with memfit.session(None) as session:
        for _ in range(3):
            model.step()
    assert Counter(op.name for op in session.trace.ops) == Counter(op.name for op in recorded.ops)
    assert session.trace.ops[-1].phase is Phase.OPTIMIZER
    assert peak_live(session.trace)[0] == peak_live(recorded)[0]


def test_signatures_tell_iterations_apart():
    class Wider(Perceptron):
        def step(self) -> None:
            self.first(torch.randn(7, 10))
            super().step()

    one, same, other = (memfit.record(model.step) for model in (Perceptron(), Perceptron(), Wider()))
    assert one.signature == same.signature != other.signature


def test_a_round_trip_through_a_file_changes_nothing(trace, tmp_path):
    for name in ("trace.json", "trace.json.gz"):
        memfit.save_trace(trace, tmp_path / name)
        assert memfit.load_trace(tmp_path / name) == trace


@pytest.mark.long
def test_ten_thousand_ops_take_less_than_five_megabytes(tmp_path):
    def step() -> None:
        x = torch.randn(4, requires_grad=True)
        for i in range(4_000):
            x = x.mul(i).add(1)
        x.sum().backward()

    long = memfit.record(step)
    assert len(long.ops) >= 10_000
    memfit.save_trace(long, tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size < 5_000_000


def test_record_is_refused_inside_a_session_and_ends_its_own_when_the_step_fails():
    with memfit.session(None), pytest.raises(UsageError):
        memfit.record(Perceptron().step)

    def fails() -> None:
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        memfit.record(fails)
    assert not engine.load().active()


def test_a_step_without_any_op_is_an_error_not_a_crash():
    with pytest.raises(memfit.MemfitError, match="op"):
        memfit.record(lambda: None)


# --- no optimizer: the iteration is what the op stream repeats


def by_hand() -> tuple[list[Tensor], Callable[[], float]]:
    torch.manual_seed(0)
    weights = [torch.randn(20, 20, requires_grad=True) for _ in range(3)]

    def step() -> float:
        x = torch.randn(50, 20)
        for weight in weights:
            x = torch.tanh(x @ weight)
        loss = x.square().mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=0.1)
        return loss.item()

    return weights, step


def test_an_iteration_without_an_optimizer_is_found_by_its_period():
    _, step = by_hand()
    recorded = memfit.record(step)
    _, step = by_hand()
    with memfit.session(None) as session:
        for _ in range(100):
            step()
    assert Counter(op.name for op in session.trace.ops) == Counter(op.name for op in recorded.ops)
    assert sum(op.name == "aten::sub_.Tensor" for op in session.trace.ops) == 3
    assert {Phase.FORWARD, Phase.BACKWARD} == {op.phase for op in session.trace.ops}
    assert peak_live(session.trace)[0] == peak_live(recorded)[0]
    assert len(set(session.signatures[1:])) == 1  # every later iteration is the same


def test_a_share_takes_effect_without_an_optimizer_and_changes_nothing():
    _, step = by_hand()
    plain = [step() for _ in range(100)]
    _, step = by_hand()
    with memfit.session("70%", "ram") as session:
        assert [step() for _ in range(100)] == plain
    assert session.stats.budget_bytes == 7 * peak_live(session.trace, aligned=True)[0] // 10
    assert session.stats.peak_footprint_bytes <= session.stats.budget_bytes
    assert session.stats.bytes_out > 0


def test_a_loop_that_does_not_train_is_no_iteration():
    with memfit.session("10%", "ram") as session:
        x = torch.ones(10)
        for _ in range(2_000):
            x = x.mul(1.0)
    assert session.recorded is None


def test_a_file_whose_name_is_no_text_is_named_with_escapes():
    """Its name may be any bytes, which Python keeps as lone surrogates."""
    names: dict[str, Callable[[], Tensor]] = {}
    exec(compile("import torch\ndef step(): return torch.ones(3) + 1", "odd\udcff.py", "exec"), names)
    assert {op.source for op in memfit.record(names["step"]).ops} == {"odd\\udcff.py:2"}


def test_batch_norm_writes_its_running_statistics_and_nothing_else_that_was_there_before():
    x, norm = torch.randn(8, 6, 5, 5), nn.BatchNorm2d(6)
    parameters = [*norm.parameters(), torch.nn.Parameter(torch.ones(8, 6, 5, 5))]
    optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        norm(x * parameters[-1]).square().mean().backward()
        optimizer.step()

    trace = memfit.record(step)
    (at,) = [i for i, op in enumerate(trace.ops) if op.name == "aten::batch_norm"]
    op = trace.ops[at]
    old = [s for s in op.writes if trace.storages[s].alloc_tick < op.first_tick]
    assert sizes(trace, tuple(old)) == [24, 24]
    assert not {*old} & {trace.storages.index(s) for s in trace.storages if s.category is Category.PARAMETER}


DOORS: dict[str, Callable[[Tensor], object]] = {
    "data_ptr": lambda wave: wave.data_ptr(),
    "a storage's": lambda wave: wave.untyped_storage().data_ptr(),
    "numpy": lambda wave: wave.numpy(),
    "DLPack": lambda wave: torch.utils.dlpack.to_dlpack(wave),
    "a slice of a storage": lambda wave: wave.untyped_storage()[:4],
}


@pytest.mark.parametrize("door", DOORS)
def test_a_trace_says_from_which_op_on_a_storage_is_pinned_and_by_which_line(door):
    weight, old = torch.nn.Parameter(torch.randn(64)), []

    def step() -> None:
        wave = torch.zeros(500)
        (weight * 2).sum().backward()
        DOORS[door](wave)
        old[:] = [wave.add_(1)]

    with memfit.session(None) as session:
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            step()
            optimizer.step()
    trace = session.trace
    assert trace is not None
    waves = [storage for storage in trace.storages if storage.size_bytes == 2000]
    before, own = sorted(waves, key=lambda storage: not storage.born_before)
    number = trace.storages.index(own)
    add = max(index for index, op in enumerate(trace.ops) if number in op.writes)
    assert (before.pinned_from, own.pinned_from) == (0, add) and trace.outlives(own)
    assert os.path.basename(own.pinned_by.partition(":")[0]) == "test_record.py"
    numbers = [storage for storage in trace.storages if storage.size_bytes == 8]  # torch reads them by raw pointers
    lasting = [storage for storage in numbers if storage.free > storage.alloc + 1]
    assert lasting and all(storage.pinned_from is not None for storage in lasting)
    assert all(storage.pinned_from is None for storage in trace.storages if storage.size_bytes not in (8, 2000))
