"""Storages that were discarded are made again, to the same bits, by the ops that had made them.

Before every op all storages that can be made again are discarded, and garbage is left in their place.
"""

from __future__ import annotations

import copy
import ctypes
import io
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memfit
from memfit import Session, Stats, TierError
from memfit.running import engine
from running.helpers_training import others_hidden
from running.plainly import descend
from running.side_by_side import at_once
from running.stress import schemas, verified
from running.stress.compare import outcome, stressed
from running.stress.seen import Reader, Row, read_plainly

BUDGET = 64 << 20

pytestmark = pytest.mark.unstressed("its own stress is what is tested")


@pytest.fixture(autouse=True)
def on_its_own() -> Iterator[None]:
    with others_hidden():
        yield


def recomputed(work: Callable[[], object], budget: int = BUDGET) -> tuple[object, Stats]:
    with memfit.session(budget, "ram", device="cpu", plan=False) as session, stressed("recompute"):
        result = work()
    return result, session.stats


def plainly(work: Callable[[], object]) -> object:
    torch.manual_seed(0)
    return work()


def same(work: Callable[[], list[Tensor]], least: int = 1) -> Stats:
    """Run it plainly and with its storages made again; return the figures."""
    expected = plainly(work)
    torch.manual_seed(0)
    found, stats = recomputed(work)
    assert len(expected) == len(found)
    for plain, ours in zip(expected, found, strict=True):
        assert plain.dtype == ours.dtype and torch.equal(plain.nan_to_num(7.0), ours.nan_to_num(7.0))
    assert stats.recomputations >= least and stats.failed_recomputations == 0
    return stats


def train(
    network: Callable[[], nn.Module], batch: Callable[[], Tensor], steps: int = 3, **options: bool
) -> list[Tensor]:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, **options)
    losses = [loss.detach().clone() for loss in descend(optimizer, lambda: net(batch()).float().square().mean(), steps)]
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [
        *losses,
        *(v.detach().clone() for v in net.state_dict().values()),
        *(v.clone() for v in states),
        torch.randn(3),
    ]


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.3),
        nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def attentive() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True)
    return nn.Sequential(nn.Linear(16, 16), layer, nn.LayerNorm(16), nn.Linear(16, 4))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(20, 8),
            nn.LSTM(8, 12, 2, batch_first=True),
            nn.Linear(12, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(x))[0])


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    ("network", "batch"),
    [
        (convolutional, lambda: torch.randn(8, 3, 16, 16)),
        (lambda: convolutional().to(memory_format=torch.channels_last), lambda: torch.randn(8, 3, 16, 16)),
        (attentive, lambda: torch.randn(4, 6, 16)),
        (Recurrent, lambda: torch.randint(0, 20, (4, 7))),
    ],
    ids=["convolutional", "channels last", "attentive", "recurrent"],
)
def test_training_gives_the_same_bits(network, batch, foreach):
    stats = same(lambda: train(network, batch, foreach=foreach), least=20)
    assert stats.bytes_discarded > 0 and stats.recompute_ns > 0


def test_running_statistics_move_once_a_step():
    def work() -> list[Tensor]:
        norm, x = nn.BatchNorm1d(6), torch.randn(32, 6)
        with torch.no_grad():
            y = norm(x)
        return [y + 1, y * 2, *norm.buffers()]  # of these only y can be made again

    same(work, least=2)


def test_statistics_that_are_only_read_are_read_again():
    def work() -> list[Tensor]:
        norm, x = nn.BatchNorm1d(6), torch.randn(32, 6)
        norm.running_mean.add_(3)
        norm.eval()
        y = norm(x * 2)
        return [x + 1, y + 1]

    same(work)


def test_what_autocast_makes_is_made_again_as_it_was():
    def work() -> list[Tensor]:
        layer, x = nn.Linear(16, 16), torch.randn(8, 16)
        full = layer(x)
        with torch.autocast("cpu", torch.bfloat16):
            half = layer(x)
            sums = [full + 0, half + 0]
        return [*sums, full + 0, half + 0]

    same(work, least=4)


def test_ops_that_autocast_takes_over_are_made_again_of_what_it_has_cast():
    """`linear` only calls others; these are autocast's own."""

    def work() -> list[Tensor]:
        x, bias, batches = torch.randn(16, 16), torch.randn(16), torch.randn(4, 16, 16)
        with torch.autocast("cpu", torch.bfloat16):
            made = [torch.addmm(bias, x, x), x @ x, torch.bmm(batches, batches)]
            made += [torch.baddbmm(batches, batches, batches)]
            assert {each.dtype for each in made} == {torch.bfloat16}
            made += [torch.cat([x, x.bfloat16()]), F.conv1d(batches, batches)]
        return [each + 0 for each in made] + [each + 1 for each in made]

    same(work, least=6)


def test_what_a_mode_makes_of_an_op_is_made_again_as_the_mode_made_it():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Halving(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            halved = [arg * 0.5 if isinstance(arg, Tensor) else arg for arg in args]
            return func(*halved, **(kwargs or {}))

    def work() -> list[Tensor]:
        x = torch.randn(64, 8)
        with Halving():
            made = [F.gelu(x), x @ x.T, torch.tanh(x)]
        return [each + 0 for each in made] + [each + 1 for each in made]

    same(work, least=3)


def test_nobody_sees_a_re_run_but_those_who_see_ops():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    names: list[str] = []

    def work() -> list[Tensor]:
        x = torch.randn(64, 8)
        y = F.gelu(x)
        with Seen():
            return [y + 1]

    same(work)
    assert names == ["aten::add"] * 2


@pytest.mark.parametrize("before", [1, 2])
def test_as_many_threads_sum_as_before(before):
    def sums(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        return [part.sum() for part in numbers]

    def work() -> list[Tensor]:
        totals = sums(before)
        torch.set_num_threads(3 - before)
        return [total * 2 for total in totals]

    numbers = torch.rand(16, 1 << 19)
    try:
        assert sums(1) != sums(2), "it would not show"
        same(work, least=16)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("before", [False, True])
def test_a_library_is_used_as_before(before):
    def images(by_onednn: bool) -> Tensor:
        torch._C._set_mkldnn_enabled(by_onednn)
        return F.conv2d(pictures, weight, padding=1)

    def work() -> list[Tensor]:
        made = images(before)
        torch._C._set_mkldnn_enabled(not before)
        seen = [made * 2, made + 1]
        assert torch._C._get_mkldnn_enabled() is not before  # for the program's own ops
        return seen

    torch.manual_seed(0)
    pictures, weight = torch.randn(4, 16, 24, 24), torch.randn(16, 16, 3, 3)
    try:
        assert not torch.equal(images(True), images(False)), "it would not show"
        same(work)
    finally:
        torch._C._set_mkldnn_enabled(True)


@pytest.mark.parametrize("count", [4, 64])  # of which four are few enough to be kept by value
def test_statistics_that_are_weights_too_are_read_as_they_were_written(count):
    def work() -> list[Tensor]:
        weight = torch.rand(count)
        x = torch.randn(32, count)
        y = F.batch_norm(x, weight, torch.ones(count), weight, torch.zeros(count), training=True)
        return [y * 2, y + 1, weight + 0, x * 2]

    same(work)


def test_statistics_that_are_no_row_choose_the_kernel_that_they_chose():
    """A batch norm adds in another order if its statistics are not contiguous, though it only writes to them."""
    pictures = [torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(seed)) for seed in range(64)]

    def work(step: int = 2) -> list[Tensor]:
        mean, variance = (torch.ones(3 * step)[::step] for _ in range(2))
        outputs = [F.batch_norm(picture * 1, mean, variance, training=True) for picture in pictures]
        return [output * 1 for output in outputs]

    assert any(not torch.equal(*pair) for pair in zip(work(), work(step=1), strict=True)), "it would not show"
    same(work, least=len(pictures))


def test_a_loss_keeps_the_storage_of_its_terms_and_is_right():
    def work() -> list[Tensor]:
        x = torch.randn(300, requires_grad=True)
        loss = F.mse_loss(x * 2, torch.zeros(300))
        loss.backward()
        return [loss + 1, x.grad + 1]

    same(work)


def test_numbers_keep_their_kind():
    same(lambda: [torch.arange(600) * 0.3 + 1, (torch.arange(600) + 2) * 2])


def test_what_is_made_from_an_input_is_made_before_that_is_overwritten():
    def work() -> list[Tensor]:
        x = torch.randn(100)
        first = x * 2
        x.add_(1)
        second = x * 3
        x.data.mul_(5)
        third = torch.exp(x)
        x[:50].zero_()
        fourth = x.sort().values
        x.numpy()[:] = 9  # through a raw pointer
        fifth = x + 1
        return [first + 0, second + 0, third + 0, fourth + 0, fifth + 0, x + 0]

    same(work, least=4)


def test_versions_that_are_gone_are_made_again_on_the_way():
    def work() -> list[Tensor]:
        x = torch.randn(100).mul(2)
        x.add_(1).mul_(3).sub_(2)
        y = torch.tanh(x * 2)
        return [y + 1, x + 1, y * 2]

    same(work, least=3)


def test_an_input_lives_as_long_as_it_may_be_read_again():
    def work() -> list[Tensor]:
        x = torch.randn(100)
        y, z = torch.exp(x), torch.nn.Parameter(x)
        del x
        z.data = torch.randn(10)
        w = y * 2
        del y
        return [w + 1, z + 1]

    same(work, least=2)


def test_random_numbers_are_drawn_once():
    def work() -> list[Tensor]:
        own = torch.Generator().manual_seed(3)
        drawn = [torch.empty(200).bernoulli_(0.4), F.dropout(torch.ones(300), 0.5), torch.rand(100)]
        drawn += [torch.normal(0.0, 1.0, (64,), generator=own), torch.ones(90).exponential_(generator=own)]
        drawn += [torch.randperm(128, generator=own), torch.multinomial(torch.ones(80), 30)]
        return [*(d + 0 for d in drawn), torch.rand(4), torch.rand(4, generator=own), *(d * 2 for d in drawn)]

    same(work, least=2)


def test_views_and_slices_written_in_place_are_right():
    def work() -> list[Tensor]:
        x = torch.randn(20, 30) * 2
        rows, columns = x[3:7], x[:, ::2]
        rows.mul_(2)
        columns.add_(rows.sum())
        halves = x.t().chunk(2)
        halves[1].relu_()
        return [x + 0, rows + 0, halves[0] + 0, halves[1] + 0]

    same(work, least=2)


def test_checkpoints_and_second_derivatives_are_right():
    def work() -> list[Tensor]:
        x = torch.randn(8, 16, requires_grad=True)
        layer = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2))
        y = checkpoint(layer, x, use_reentrant=False)
        (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        return [y.detach(), slope.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]

    same(work, least=5)


def test_threads_that_make_again_what_all_of_them_use():
    def job(seed: int) -> Callable[[], Tensor]:
        def run() -> Tensor:
            net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
            generator = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
            x = torch.randn(16, 32, generator=generator)
            for _ in range(6):
                net(shared.relu().mean() + x).square().mean().backward()
            return torch.cat([p.grad.flatten() for p in net.parameters()])

        return run

    shared = torch.linspace(-1, 1, 999) * 2
    jobs = [job(seed) for seed in range(4)]
    expected = [one() for one in jobs]
    found, stats = recomputed(lambda: at_once(jobs), 1 << 20)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    assert stats.recomputations > 20 and stats.failed_recomputations == 0


def test_a_forked_child_reads_what_its_parent_had_discarded():
    def work() -> int:
        x = torch.randn(1000)
        kept = [torch.exp(x), torch.exp(x).mul_(2).tanh_()]
        x + 1  # and both are discarded
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(kept[0] + 0, expected[0]) and torch.equal(kept[1] + 0, expected[1]) else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    torch.manual_seed(0)
    x = torch.randn(1000)
    expected = [torch.exp(x), torch.exp(x).mul_(2).tanh_()]
    torch.manual_seed(0)
    code, stats = recomputed(work)
    assert code == 0 and stats.discards >= 2


def test_bytes_that_are_read_without_an_op_are_there():
    def work(session: Session) -> None:
        x = torch.arange(500.0)
        y, z = torch.exp(x / 500), torch.sqrt(x)
        x + 1
        assert np.frombuffer(session.read_bytes(y.untyped_storage()), np.float32)[0] == 1.0
        x + 1
        stream = io.BytesIO()
        torch.save([y, z], stream)
        x + 1
        copies = copy.deepcopy([y, z])
        x + 1
        assert y.tolist()[0] == 1.0 and z.numpy()[4] == 2.0
        stream.seek(0)
        assert all(torch.equal(a, b) for a, b in zip(torch.load(stream), copies, strict=True))

    with memfit.session(BUDGET, "ram", device="cpu") as session, stressed("recompute"):
        work(session)
    assert session.stats.recomputations >= 4


def test_everything_is_there_after_the_session():
    with memfit.session(BUDGET, "ram", device="cpu") as session, stressed("recompute"):
        x = torch.arange(500.0)
        y = torch.sqrt(x)
        z = y.mul(3).add_(1)
        x + 1
        discarded = session.stats.discards
        assert discarded >= 2
    assert torch.equal(y, torch.sqrt(x)) and torch.equal(z, torch.sqrt(x) * 3 + 1)


def test_chains_are_bounded_and_so_is_what_is_kept():
    def work() -> list[Tensor]:
        x = torch.ones(4096)
        for i in range(300):
            x = x * 1.001 + i / 1e4
        return [x]

    same(work, least=100)


def test_other_bytes_are_an_error_and_never_a_result():
    torch.manual_seed(0)
    x = torch.rand(1000)  # before the session: it cannot be made again itself
    expected = x.clone()
    with memfit.session(BUDGET, "ram", device="cpu") as session, stressed("recompute"):
        y = torch.sqrt(x)
        torch.ones(4) + 1  # y is discarded
        bytes_of_x = (ctypes.c_float * 1000).from_address(session_address(x))
        bytes_of_x[999] += 1  # nobody is told
        with pytest.raises(TierError, match=r"made again, which failed: aten::sqrt: they came out different"):
            y + 1
        bytes_of_x[999] -= 1
        assert torch.equal(y + 0, torch.sqrt(expected))
        assert session.stats.failed_recomputations >= 1


def session_address(x: Tensor) -> int:
    """The address where the bytes lie now, asked for behind memfit's back."""
    from memfit.running import engine

    return engine.load().original_of(Tensor.data_ptr)(x)


@pytest.mark.unmapped
def test_a_re_run_without_room_is_an_error_and_works_when_there_is_room():
    with memfit.session(16 << 20, "ram", device="cpu") as session, stressed("recompute"):
        x = torch.rand(1 << 19)  # 2 MiB
        y = torch.cat([x, x])  # 4 MiB
        x + 1
        pinned = torch.zeros(11 << 18)  # 11 MiB
        with session.hold(pinned), pytest.raises(TierError, match="made again, which failed: aten::cat"):
            y.sum()
        assert y.sum().item() == torch.cat([x, x]).sum().item()


def test_the_end_of_a_session_leaves_no_recipe_behind():
    made = []
    for _ in range(3):
        with memfit.session(BUDGET, "ram", device="cpu") as session, stressed("recompute"):
            made.append([t * 2 for t in (made[-1] if made else [torch.arange(100.0)])])
        assert session.stats.failed_recomputations == 0
    assert torch.equal(made[-1][0], torch.arange(100.0) * 8)


def test_an_error_that_is_kept_for_the_program_is_not_told_to_an_op_that_runs_again():
    with memfit.session(BUDGET, "ram", device="cpu", plan=False) as session, stressed("recompute"):
        made = torch.ones(4096) * 3
        torch.ones(1)  # it is discarded
        engine.load().fail_next("the budget is too small", 1)
        with pytest.raises(memfit.BudgetError, match="the budget is too small"):
            made.neg()
        assert made.neg().sum().item() == -3 * 4096
    assert session.stats.recomputations > 0 and session.stats.failed_recomputations == 0


@contextmanager
def other_settings() -> Iterator[None]:
    """Other settings of torch's than those of a process that has changed nothing, while it lasts."""
    torch.set_default_dtype(torch.float64)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_flush_denormal(False)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("was_other", [False, True])
def test_what_depends_on_torchs_settings_is_made_again_with_those_of_then(was_other: bool) -> None:
    def work() -> list[Tensor]:
        with other_settings() if was_other else nullcontext():
            numbers = torch.arange(4096, dtype=torch.int32) * 1
            tiny = torch.full((4096,), 1e-38, dtype=torch.float32) * 1
            made = [numbers / 2, torch.sin(numbers), tiny * 0.25]
        with nullcontext() if was_other else other_settings():
            later = [each + 0 for each in made]
            return [*later, torch.ones(3) / 3, tiny * 0.5]

    same(work, least=3)


def test_each_warning_is_said_as_often_as_by_a_plain_run() -> None:
    def work() -> list[str]:
        mask, x = torch.zeros(10, dtype=torch.uint8), torch.ones(10, 10)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            x.index_put_((mask,), x[mask], accumulate=True)
            torch.ones(4, 4) * 2
            x[mask] + 1
        return [str(each.message) for each in said]

    expected = work()
    found, stats = recomputed(work)
    assert found == expected and expected and stats.recomputations > 0


def seen_of(name: str, read: Reader) -> list[Row]:
    """Return all that is seen of what an operator returns, and of its arguments afterwards."""
    return [row for sample in schemas.samples(name) for part in sample.parts.values() for row in outcome(part, read)]


@pytest.mark.parametrize("name", [*schemas.OWN, *sorted(verified.listed(verified.COMPOSITES))[::15]])
def test_composites_leave_no_recipe_of_what_they_write_themselves(name: str) -> None:
    if name not in schemas.schemas():
        pytest.skip("it has no samples, or this torch has no such operator")
    torch.manual_seed(0)
    expected = seen_of(name, read_plainly)
    torch.manual_seed(0)
    with memfit.session(BUDGET, "ram", device="cpu", plan=False) as session, stressed("recompute"):
        assert seen_of(name, session.read_bytes) == expected
    assert session.stats.failed_recomputations == 0


def test_what_composites_call_is_made_again_where_these_write_nothing_themselves() -> None:
    same(
        lambda: [torch.nn.functional.linear(torch.ones(64, 64) * 2, torch.ones(64, 64) * 3) + 1 for _ in range(2)],
        least=2,
    )


def test_other_threads_compute_with_the_settings_of_now_while_an_op_runs_again_with_those_of_then() -> None:
    numbers = torch.arange(4096, dtype=torch.int32) * 1

    def later(dtypes: set[torch.dtype]) -> None:
        for _ in range(50):
            dtypes.add((numbers / 3).dtype)

    def work() -> tuple[set[torch.dtype], list[Tensor]]:
        made, dtypes = [numbers / divisor for divisor in range(1, 9)], set()
        torch.set_default_dtype(torch.float64)
        try:
            other = threading.Thread(target=later, args=(dtypes,))
            other.start()
            try:
                found = [each + 0 for _ in range(3) for each in made]
            finally:
                other.join()
        finally:
            torch.set_default_dtype(torch.float32)
        return dtypes, found

    (dtypes, expected), found = work(), None
    try:
        found, _ = recomputed(work)
    except TierError as error:  # the other thread's op was held up
        assert "other threads compute now" in str(error)
    assert dtypes == {torch.float64}
    if found is not None:
        assert found[0] == dtypes and all(torch.equal(*pair) for pair in zip(found[1], expected, strict=True))
