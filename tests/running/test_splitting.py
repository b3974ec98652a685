"""Ops that do not fit the budget run in slices, with the same bits, and nothing else is."""

from __future__ import annotations

import json
import multiprocessing
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import memfit
from memfit.errors import BudgetError, MemfitError, TierError
from memfit.planning.lifetimes import least_sets, working_sets
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.session.splits import KeptSplits
from running.stress.compare import stressed

pytestmark = [pytest.mark.usefixtures("on_its_own", "unknown"), pytest.mark.unstressed("where bytes are")]
KIB, MIB = 1 << 10, 1 << 20
Call = Callable[..., Tensor | tuple[Tensor, ...]]
aten = torch.ops.aten


@pytest.fixture
def unknown() -> Iterator[None]:
    """Nothing has been tried yet, and nothing is known to later tests."""
    engine.load().know_splits([])
    yield
    engine.load().know_splits([])


def rows(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def outputs(result: object) -> list[Tensor]:
    return [t for t in (result if isinstance(result, tuple) else (result,)) if isinstance(t, Tensor)]


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def in_slices(call: Call, arguments: list[Tensor]) -> tuple[list[Tensor], int]:
    """Return the outputs of the call when all that may be cut is, and is away, and how many ops were split."""
    native = engine.load()
    with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
        mine = [a.clone() for a in arguments]
        call(*mine)  # tries it
        native.allow_splits(True, True, True)
        made = [t.clone() for t in outputs(call(*mine))]
        native.allow_splits(True, True, False)
        count = session.stats.split_ops
    return made, count


T = (96, 640)
IMAGES = [(6, 16, 24, 24), (16,), (16,)]
RULES: dict[str, tuple[Call, list[tuple[int, ...]]]] = {
    "log_softmax": (lambda x: torch.log_softmax(x, 1), [T]),
    "log_softmax of columns": (lambda x: torch.log_softmax(x, 0), [(640, 256)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(3, 50, 401)]),
    "log_softmax backward": (lambda g, y: aten._log_softmax_backward_data(g, y, 1, g.dtype), [T, T]),
    "softmax backward": (lambda g, y: aten._softmax_backward_data(g, y, 1, g.dtype), [T, T]),
    "gelu": (lambda x: aten.gelu(x), [T]),
    "gelu backward": (lambda g, x: aten.gelu_backward(g, x), [T, T]),
    "relu": (torch.relu, [T]),
    "threshold backward": (lambda g, x: aten.threshold_backward(g, x, 0), [T, T]),
    "add": (torch.add, [T, T]),
    "add broadcast": (lambda a, b: a + b, [T, (640,)]),
    "mul by a number": (lambda x: x * 3.0, [T]),
    "where": (lambda a, b: torch.where(a > 0, a, b), [T, T]),
    "layer norm": (lambda x, w, b: aten.native_layer_norm(x, [640], w, b, 1e-5), [T, (640,), (640,)]),
    "max pool": (lambda x: aten.max_pool2d_with_indices(x, [2, 2]), [(6, 4, 64, 64)]),
    "avg pool": (lambda x: F.avg_pool2d(x, 2), [(6, 4, 64, 64)]),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), [(6, 4, 48, 48), (8, 4, 3, 3), (8,)]),
    "convolution's input gradient": (
        lambda g, x, w: aten.convolution_backward(
            g, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, False, False]
        )[0],
        [(6, 8, 48, 48), (6, 4, 48, 48), (8, 4, 3, 3)],
    ),
    "convolution's gradients": (
        lambda g, x, w: aten.convolution_backward(
            g, x, w, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True]
        ),
        [(6, 8, 48, 48), (6, 4, 48, 48), (8, 4, 3, 3)],
    ),
    "layer norm's gradients": (
        lambda g, x, w, b: aten.native_layer_norm_backward(
            g, x, [640], *aten.native_layer_norm(x, [640], w, b, 1e-5)[1:], w, b, [True, True, True]
        ),
        [T, T, (640,), (640,)],
    ),
    "mm": (torch.mm, [(256, 96), (96, 320)]),
    "addmm": (torch.addmm, [(320,), (256, 96), (96, 320)]),
    "linear": (F.linear, [(256, 96), (320, 96), (320,)]),
    "bmm": (torch.bmm, [(8, 64, 48), (8, 48, 64)]),
    "batch norm": (lambda x, w, b: aten.native_batch_norm(x, w, b, None, None, True, 0.1, 1e-5), IMAGES),
    "batch norm in use": (
        lambda x, w, b: aten.native_batch_norm(x, w, b, b * 0.5, w * w + 1, False, 0.1, 1e-5)[0],
        IMAGES,
    ),
    "batch norm backward": (
        lambda g, x, w, m: aten.native_batch_norm_backward(
            g, x, w, None, None, m, m * m + 1, True, 1e-5, [True, True, True]
        ),
        [*IMAGES[:1], *IMAGES],
    ),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [(8, 4, 64, 32)] * 3),
    "attention backward": (
        lambda g, q, k, v: aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, *aten._scaled_dot_product_flash_attention_for_cpu(q, k, v), 0.0, False
        ),
        [(8, 4, 64, 32)] * 4,
    ),
    "attention with everyone's mask": (
        lambda q, k, v, mask: aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, attn_mask=mask),
        [(8, 32, 8, 32), (8, 32, 64, 32), (8, 32, 64, 32), (8, 64)],
    ),
    "to another type": (lambda x: x.to(torch.float64), [T]),
    "cat": (lambda a, b: torch.cat([a, b], 1), [T, (96, 64)]),
    "nll backward": (
        lambda s: aten.nll_loss_backward(
            torch.ones((), dtype=s.dtype), s, torch.arange(len(s)), None, 1, -100, torch.tensor(len(s), dtype=s.dtype)
        ),
        [T],
    ),
    "nll": (lambda s: aten.nll_loss_forward(s, torch.arange(len(s)) % 7, None, 1, -100), [T]),
    "embedding": (lambda w: F.embedding(torch.arange(512) % 96, w), [T]),
}


@pytest.mark.parametrize("name", RULES)
def test_what_was_tried_with_equal_rows_holds_for_others(name: str) -> None:
    call, shapes = RULES[name]
    arguments, native = rows(*shapes), engine.load()
    plain = outputs(call(*arguments))
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        call(*(a[:1].expand(a.shape).clone() for a in arguments))
        mine = [a.clone() for a in arguments]
        native.allow_splits(True, True, True)
        made = [bits(t) for t in outputs(call(*mine))]
    assert made == [bits(t) for t in plain]


PRODUCTS = ("mm", "addmm", "linear", "bmm", "convolution", "convolution's input gradient")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", RULES)
def test_an_op_gives_the_same_bits_in_slices(name: str, dtype: torch.dtype) -> None:
    call, shapes = RULES[name]
    arguments = rows(*shapes, dtype=dtype)
    plain = outputs(call(*arguments))
    made, split_ops = in_slices(call, arguments)
    # (A product may come out otherwise in slices: then it is not split, and the bits are the same all the same.)
    assert split_ops > 0 or name in PRODUCTS or (name.startswith("attention") and dtype is torch.bfloat16)
    assert [t.shape for t in made] == [t.shape for t in plain] and [t.stride() for t in made] == [
        t.stride() for t in plain
    ]
    assert [bits(t) for t in made] == [bits(t) for t in plain]


@given(
    st.sampled_from(["log_softmax", "gelu", "add broadcast", "layer norm", "mm", "cat"]),
    st.integers(2, 300),
    st.integers(64, 700),
)
def test_odd_sizes_give_the_same_bits(name: str, first: int, second: int) -> None:
    call = RULES[name][0]
    shapes = {"add broadcast": [(first, second), (second,)], "mm": [(first, second), (second, first)],
              "cat": [(first, second), (first, 3)]}  # fmt: skip
    if name == "layer norm":
        call = lambda x, w, b: aten.native_layer_norm(x, [second], w, b, 1e-5)  # noqa: E731
        shapes[name] = [(first, second), (second,), (second,)]
    arguments = rows(*shapes.get(name, [(first, second)]))
    plain = outputs(call(*arguments))
    made, _ = in_slices(call, arguments)
    assert [bits(t) for t in made] == [bits(t) for t in plain]


def equal_steps(op: str) -> list[list[tuple[int, int]]]:
    """Return the ways and lengths that gave the same bits, of each kind of call that was tried."""
    return [row[5] for row in engine.load().split_answers() if row[0] == op]


def normalise(x: Tensor, module: nn.BatchNorm2d) -> list[bytes]:
    x = x.clone().requires_grad_()
    made = [torch.relu(module(x)) for _ in range(2)]
    sum(made).square().sum().backward()
    state = [*module.state_dict().values(), *(p.grad for p in module.parameters()), x.grad]
    return [bits(t) for t in (*made, *state) if t is not None]


@pytest.mark.parametrize("channels", [16, 21])
@pytest.mark.parametrize("trains", [True, False])
def test_statistics_that_are_learned_in_slices_are_the_same(channels: int, trains: bool) -> None:
    torch.manual_seed(1)
    (x,) = rows((8, channels, 24, 24))
    plain = normalise(x, nn.BatchNorm2d(channels).train(trains))
    native = engine.load()
    with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
        tried_too = normalise(x, nn.BatchNorm2d(channels).train(trains))
        native.allow_splits(True, True, True)
        made = normalise(x, nn.BatchNorm2d(channels).train(trains))
    assert tried_too == plain and made == plain and session.stats.split_ops >= 6
    kinds = ("aten::native_batch_norm", "aten::native_batch_norm_backward")
    assert all(any(equal_steps(kind)) for kind in kinds)


def gradients_of_a_convolution(side: int = 32, channels: int = 8) -> list[bytes]:
    g, x, w = rows((32, 16, side, side), (32, channels, side, side), (16, channels, 3, 3))
    args: tuple[object, ...] = ([16], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, True])
    return [bits(t) for t in aten.convolution_backward(g, x, w, *args)]


def test_gradients_are_computed_apart_where_they_do_not_fit_together() -> None:
    plain = gradients_of_a_convolution()
    tried(gradients_of_a_convolution)
    assert [(0, 1)] in equal_steps("aten::convolution_backward")
    whole = max(row[2] for row in engine.load().split_answers() if row[0] == "aten::convolution_backward")
    given = 4 * (32 * 16 + 32 * 8) * 32 * 32
    with memfit.session(given + whole - MIB // 2, "ram", device="cpu", plan=False, map="never") as session:
        assert gradients_of_a_convolution() == plain
        assert session.stats.split_ops >= 1
    never = {"map": "never", "split": "never"}
    with (
        pytest.raises(BudgetError),
        memfit.session(given + whole - MIB // 2, "ram", device="cpu", plan=False, **never),  # type: ignore[call-overload]
    ):
        gradients_of_a_convolution()


@pytest.mark.parametrize("tenths", [15, 16, 17])
def test_gradients_apart_are_tried_where_their_results_hardly_fit(tenths: int) -> None:
    plain = gradients_of_a_convolution(16, 16)
    with memfit.session(tenths * MIB // 10, "ram", device="cpu", plan=False) as session:
        assert [gradients_of_a_convolution(16, 16) for _ in range(3)] == [plain] * 3
    assert session.stats.mapped_ops > 0


def test_the_smallest_budget_of_gradients_apart_is_foreseen() -> None:
    plain = gradients_of_a_convolution()
    with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
        trace = session.record_span(gradients_of_a_convolution)
    (op,) = (i for i, op in enumerate(trace.ops) if "convolution_backward" in op.name)
    least, whole = least_sets(trace), working_sets(trace, aligned=True)
    assert trace.ops[op].split_bytes == least[op] <= whole[op] - 2 * MIB // 3
    assert op == int(least.argmax())
    budget = int(least[op]) + MIB // 8  # what is small, and holes
    with memfit.session(budget, "ram", device="cpu", plan=False, map="never") as session:
        assert gradients_of_a_convolution() == plain
        assert session.stats.split_ops >= 1 and session.stats.mapped_ops == 0


def test_what_is_handed_on_is_moved_together_where_that_makes_room() -> None:
    weight, bias = rows((16,), (16,))

    def normalised() -> list[bytes]:
        below, x = torch.randn(MIB // 4), torch.randn(32, 16, 32, 32, generator=torch.Generator().manual_seed(5))
        x.add_(1)
        del below  # x lies in the middle now
        return [bits(F.batch_norm(x, weight, bias.square() + 1, training=False))]

    plain = normalised()
    tried(normalised)
    with memfit.session(int(4.5 * MIB), "ram", device="cpu", plan=False, map="never") as session:
        assert normalised() == plain
    assert session.stats.split_ops == 0


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded rows": lambda x: x[:1].expand(*x.shape),
    "expanded columns": lambda x: x[:, :1].expand(*x.shape),
    "every second column": lambda x: torch.cat([x, x], 1)[:, ::2],
    "some columns": lambda x: torch.cat([x, x], 1)[:, 3 : 3 + x.shape[1]],
    "turned": lambda x: x.t().contiguous().t(),
    "windows": lambda x: x.reshape(-1)[: x.shape[0] + x.shape[1] - 1].unfold(0, x.shape[1], 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_any_layout_are_cut_where_their_elements_lie(layout: str) -> None:
    arguments = rows(T, T)

    def call(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(LAYOUTS[layout](x)) + torch.where(y > 0, LAYOUTS[layout](x), y)

    plain = call(*arguments)
    made, split_ops = in_slices(call, arguments)
    assert bits(made[0]) == bits(plain)
    assert any(steps for op in ("aten::relu", "aten::where.self") for steps in equal_steps(op)) and split_ops > 0


def test_of_a_product_of_zeros_others_are_tried() -> None:
    left, right = rows((256, 96), (96, 320))
    native, found = engine.load(), []
    for first in (left, left * 0, torch.eye(256, 96)):
        native.know_splits([])
        with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
            torch.mm(first, right)
        found.append(equal_steps("aten::mm"))
    assert found[0] and found == [found[0]] * 3


def test_a_product_of_zeros_says_nothing_where_there_is_a_limit() -> None:
    left, right = rows((256, 4096), (4096, 320))
    with memfit.session(4 * MIB, "ram", device="cpu", plan=False) as session:
        torch.mm(left * 0, right)
        assert session.stats.mapped_ops > 0 and equal_steps("aten::mm") == []


def test_products_in_16_bits_are_never_split() -> None:
    left, right = rows((256, 96), (96, 320), dtype=torch.bfloat16)
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        torch.mm(left, right)
    assert equal_steps("aten::mm") in ([], [[]])


@pytest.mark.parametrize("columns", [640, 641])
def test_slices_of_a_function_end_where_vectors_do(columns: int) -> None:
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        torch.tanh(torch.randn(1024, columns, generator=torch.Generator().manual_seed(0)))
        (equal,) = equal_steps("aten::tanh")
    assert equal and all(steps * columns % 64 == 0 for _, steps in equal)


def test_what_another_ops_kernel_calls_is_not_split() -> None:
    def lstm() -> list[bytes]:
        torch.manual_seed(0)
        return [bits(torch.nn.LSTM(64, 128)(torch.randn(96, 16, 64))[0].detach())]

    plain = lstm()
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"), stressed("split"):
        assert [lstm(), lstm()] == [plain, plain]


def test_what_ran_mapped_runs_in_slices_from_the_next_iteration_on() -> None:
    plain = train_softmax(6)
    with memfit.session(4 * MIB, "ram", device="cpu", plan=False) as session:
        assert train_softmax(6) == plain
    stats = session.stats
    assert stats.mapped_ops > 0 and stats.split_ops > 0 and stats.peak_footprint_bytes <= 4 * MIB
    assert any(equal_steps("aten::_log_softmax_backward_data"))


def test_without_a_limit_nothing_is_tried_unless_that_is_asked_for() -> None:
    for budget in (None, "95%"):
        with memfit.session(budget, "ram", device="cpu", plan=False):
            train_softmax(6)
    assert engine.load().split_answers() == []
    tried(train_softmax)
    assert engine.load().split_answers()


def train_softmax(steps: int = 3) -> list[bytes]:
    """A working set of three times 2 MiB, for the softmax's backward."""
    seeded = torch.Generator().manual_seed(0)  # threads draw beside each other
    x, weight = torch.randn(256, 2048, generator=seeded), nn.Parameter(torch.randn(2048, generator=seeded))
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.log_softmax(x * weight, 1)[:, 0].mean()
        loss.backward()
        optimizer.step()
        seen.append(bits(loss.detach()))
    return [*seen, bits(weight.detach())]


def tried(train: Callable[[], object]) -> None:
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        train()


@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_a_softmax_twice_as_large_as_the_budget_trains_with_the_same_bits(tier: str) -> None:
    plain = train_softmax()
    tried(train_softmax)
    with memfit.session(3 * MIB, tier, device="cpu", plan=False) as session:
        assert train_softmax() == plain
        stats = session.stats
    assert stats.peak_footprint_bytes <= 3 * MIB < 6 * MIB
    assert stats.split_ops >= 6 and stats.slices > stats.split_ops and stats.slice_bytes_in > 0


def test_a_share_below_the_largest_working_set_comes_into_force() -> None:
    plain = train_softmax(6)
    with memfit.session("45%", "ram", device="cpu", grow=False) as session:
        assert train_softmax(6) == plain
    assert 0 < session.stats.budget_bytes < 6 * MIB and session.stats.split_ops > 0 and session.stats.growths == 0


def test_a_loss_of_many_classes_is_computed_below_the_size_of_its_scores() -> None:
    def losses() -> list[bytes]:
        scores = torch.randn(512, 2048, generator=torch.Generator().manual_seed(2)).requires_grad_()
        loss = F.cross_entropy(scores, torch.arange(512) * 5 % 2048)
        loss.backward()
        assert scores.grad is not None
        return [bits(loss.detach()), bits(scores.grad)]

    plain = losses()
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"):
        losses()
    answers = {row[0] for row in engine.load().split_answers() if row[5]}
    assert {"aten::_log_softmax", "aten::nll_loss_forward", "aten::nll_loss_backward"} <= answers
    with memfit.session(6 * MIB, "ram", device="cpu", plan=False) as session:
        assert losses() == plain
    assert session.stats.split_ops >= 4


def test_a_loss_whose_scores_nearly_fill_the_budget_brings_their_softmax_in_never() -> None:
    def losses() -> list[bytes]:
        scores = torch.randn(512, 2048, generator=torch.Generator().manual_seed(3)).requires_grad_()
        loss = F.cross_entropy(scores, torch.arange(512))
        loss.backward()
        return [bits(loss.detach())]

    plain = losses()
    tried(losses)
    for budget in (5 * MIB, 6 * MIB, 7 * MIB, 9 * MIB):
        with memfit.session(budget, "ram", device="cpu", plan=False, map="never") as session:
            assert losses() == plain
        assert session.stats.split_ops >= 1


def test_slices_read_no_page_of_a_disk_many_times(tmp_path: Path) -> None:
    """Along its columns a slice of 4,096 rows would be as many chunks of some bytes."""
    a, b = rows((4096, 1024), (4096, 1024))
    plain = bits(torch.cat([a, b]))
    tried(lambda: torch.cat([a.clone(), b.clone()]))
    assert any(equal_steps("aten::cat"))
    tier = f"disk:{tmp_path}"
    with memfit.session(64 * MIB, tier, device="cpu", plan=False, map="always") as session:
        mine = [a.clone(), b.clone()]
        for _ in range(4):
            before = session.stats
            made = torch.cat(mine)
            after = session.stats
            assert after.bytes_loaded - before.bytes_loaded <= 40 * MIB
    assert bits(made) == plain


def test_nothing_is_split_that_fits() -> None:
    plain = train_softmax()
    tried(train_softmax)
    with memfit.session(24 * MIB, "ram", device="cpu", plan=False) as session:
        assert train_softmax() == plain
    assert session.stats.split_ops == session.stats.slices == 0


def test_what_is_never_to_be_split_is_refused() -> None:
    tried(train_softmax)
    with (
        pytest.raises(BudgetError),
        memfit.session(3 * MIB, "ram", device="cpu", plan=False, split="never", map="never"),
    ):
        train_softmax()


def test_what_has_not_been_tried_is_refused() -> None:
    with pytest.raises(BudgetError), memfit.session(3 * MIB, "ram", device="cpu", plan=False, map="never") as session:
        train_softmax()
    assert session.stats.split_ops == 0


def run_in_child(target: Callable[..., None], *arguments: object) -> None:
    child = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    child.start()
    child.join(120)
    assert child.exitcode == 0


def doctored() -> None:
    engine.load().trust_registered_kernels(True)
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, approximate="none": x + x.shape[0], "CPU", allow_override=True)
    x = torch.randn(256, 640)
    plain = torch.ops.aten.gelu(x)
    with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
        mine = x.clone()
        torch.ops.aten.gelu(mine)
        answers = {row[0]: row[5] for row in engine.load().split_answers()}
        engine.load().allow_splits(True, True, True)
        made = torch.ops.aten.gelu(mine).clone()
        assert session.stats.split_ops == 0 or answers.get("aten::gelu") == []
    assert answers["aten::gelu"] == [] and torch.equal(made, plain)


ANY_SHAPE = st.sampled_from(
    [(), (0,), (1,), (3,), (0, 3), (2, 3), (3, 2), (2, 3, 4), (2, 0, 4), (2, 3, 4, 5), (2, 2, 2, 2)]
)
ODD: dict[str, Callable[[Tensor, Tensor, int], object]] = {
    "softmax": lambda a, b, n: torch.softmax(a, n),
    "log_softmax backward": lambda a, b, n: aten._log_softmax_backward_data(a, a, n, a.dtype),
    "cat": lambda a, b, n: torch.cat([a, b], n),
    "add": lambda a, b, n: a + b,
    "where": lambda a, b, n: torch.where(a > 0, a, b),
    "layer norm": lambda a, b, n: F.layer_norm(a, b.shape),
    "layer norm backward": lambda a, b, n: aten.native_layer_norm_backward(
        a,
        a,
        a.shape[-1:],
        *aten.native_layer_norm(a, a.shape[-1:], None, None, 1e-5)[1:],
        None,
        None,
        [True, n > 0, False],
    ),
    "batch norm": lambda a, b, n: F.batch_norm(a, b, b, training=n > 0),
    "batch norm backward": lambda a, b, n: (
        aten.native_batch_norm_backward(
            a, a, None, None, None, *[a.new_ones(a.shape[1:2])] * 2, True, 1e-5, [n != 0, True, n < 0]
        )
        if a.numel()
        else a
    ),  # of no elements torch itself ends the process
    "max pool": lambda a, b, n: F.max_pool2d(a, 2),
    "average pool": lambda a, b, n: F.adaptive_avg_pool2d(a, n),
    "convolution": lambda a, b, n: F.conv2d(a, b, padding=max(n, 0)),
    "convolution backward": lambda a, b, n: aten.convolution_backward(
        a, a, b, [2], [1], [0], [1], False, [0], 1, [True, n > 0, n < 0]
    ),
    "mm": lambda a, b, n: torch.mm(a, b),
    "bmm": lambda a, b, n: torch.bmm(a, b),
    "addmm": lambda a, b, n: torch.addmm(a, b, b),
    "attention": lambda a, b, n: F.scaled_dot_product_attention(a, b, b, attn_mask=a if n == 2 else None),
    "embedding": lambda a, b, n: F.embedding(a.long() % 2, b),
    "nll": lambda a, b, n: F.nll_loss(a, b.long()),
    "another type": lambda a, b, n: a.to(torch.float64),
}


def outcome(call: Callable[[Tensor, Tensor, int], object], a: Tensor, b: Tensor, n: int) -> object:
    try:
        made = call(a.clone(), b.clone(), n)
    except MemfitError:
        raise
    except Exception as error:
        return type(error).__name__, str(error)
    return [(t.shape, bits(t)) for t in outputs(made)]


@pytest.mark.long
@given(st.sampled_from(sorted(ODD)), ANY_SHAPE, ANY_SHAPE, st.integers(-5, 5))
def test_what_an_op_refuses_is_refused_in_its_own_words(name: str, one: tuple, other: tuple, number: int) -> None:
    arguments = (ODD[name], *rows(one, other), number)
    plain = outcome(*arguments)
    with memfit.session(None, "ram", device="cpu", plan=False, split="try"), stressed("split"):
        assert [outcome(*arguments), outcome(*arguments)] == [plain, plain]


@pytest.mark.long
def test_a_kernel_that_gives_other_bits_in_slices_is_never_split() -> None:
    run_in_child(doctored)


@pytest.mark.parametrize("fault", ["fail_write", "fail_read"])
def test_a_tier_that_fails_in_a_slice_is_an_error_and_leaves_nothing_behind(fault: str) -> None:
    plain, native = train_softmax(), engine.load()
    tried(train_softmax)
    disturbed = DisturbedTier("ram", **{fault: 5}, repeat=True)  # type: ignore[arg-type]
    with pytest.raises(TierError), memfit.session(3 * MIB, disturbed, device="cpu", plan=False):
        try:
            train_softmax()
        finally:
            assert list(native.in_use()) == [0, 0, 0]
    with memfit.session(3 * MIB, "ram", device="cpu", plan=False) as session:
        assert train_softmax() == plain
    assert session.stats.split_ops > 0


def test_threads_split_beside_each_other() -> None:
    tried(train_softmax)
    plain, made = train_softmax(), []
    with memfit.session(6 * MIB, "ram", device="cpu", plan=False) as session:
        threads = [threading.Thread(target=lambda: made.append(train_softmax())) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert made == [plain, plain] and session.stats.peak_footprint_bytes <= 6 * MIB


def test_answers_are_kept_for_later_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path))
    plain = train_softmax()
    tried(train_softmax)
    native = engine.load()
    known = sorted(native.split_answers())
    native.know_splits([])
    with memfit.session(3 * MIB, "ram", device="cpu", plan=False) as session:
        assert train_softmax() == plain
    assert session.stats.split_ops > 0 and sorted(native.split_answers()) == known


def test_a_session_that_tries_nothing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", "off")
    tried(train_softmax)
    assert engine.load().split_answers()
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path / "plans"))
    with memfit.session(3 * MIB, "ram", device="cpu", plan=False):
        train_softmax()
    assert not (tmp_path / "plans").exists()


def test_what_another_process_has_tried_meanwhile_is_kept_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: None
) -> None:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path))
    kept, native = KeptSplits.of_this_machine(torch.device("cpu")), engine.load()
    assert kept is not None
    kept.tell(native)
    kept.path.write_text(json.dumps([["aten::theirs", 1, 0, 0, [], []]]))
    native.know_splits([("aten::ours", 2, 0, 0, [], [])])
    kept.keep(native)
    assert {row[0] for row in json.loads(kept.path.read_text())} == {"aten::theirs", "aten::ours"}


def test_a_file_of_answers_that_is_odd_is_as_good_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMFIT_PLAN_CACHE", str(tmp_path))
    kept = KeptSplits.of_this_machine(torch.device("cpu"))
    assert kept is not None
    for text in ("", "[", "[[1]]", '{"a": 1}', '[["x", "y", 1, [], []]]', '[["x", -1, 0, 0, [], []]]'):
        kept.path.write_text(text)
        kept.tell(engine.load())
        assert engine.load().split_answers() == []


def test_no_warning_tells_of_overridden_kernels(recwarn: pytest.WarningsRecorder) -> None:
    tried(train_softmax)
    assert not [w for w in recwarn if "verrid" in str(w.message)]


def test_each_warning_of_a_call_in_slices_is_said_as_often_as_by_the_whole_call() -> None:
    def said(x: Tensor) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            x.to(torch.float32)
        return [str(each.message) for each in found]

    (x,) = rows((256, 64), dtype=torch.complex64)
    torch.set_warn_always(True)
    try:
        expected = said(x)
        with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
            mine = x.clone()
            tried_ones = said(mine)
            engine.load().allow_splits(True, True, True)
            assert tried_ones == said(mine) == expected
    finally:
        torch.set_warn_always(False)
    assert expected and session.stats.split_ops == 1


def test_what_was_tried_with_another_default_dtype_is_tried_anew() -> None:
    def quotients(session: memfit.Session | None) -> list[object]:
        x = (torch.arange(1 << 20, dtype=torch.int32) % 251).to(torch.uint8)
        found: list[object] = []
        for dtype in (torch.float32, torch.float32, torch.float64, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            found.append(bits(x / 2))
            if session is not None:
                engine.load().allow_splits(True, True, True)
        return found

    try:
        expected = quotients(None)
        with memfit.session(None, "ram", device="cpu", plan=False, split="try") as session:
            assert quotients(session) == expected
    finally:
        torch.set_default_dtype(torch.float32)
    assert session.stats.split_ops >= 2
