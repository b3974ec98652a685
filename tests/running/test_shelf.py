"""Small storages, and what must stay where it is, never lie between large ones; no op is refused for a few bytes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from memfit import BudgetError, Session, session
from memfit._native import LARGEST_SMALL_BYTES
from memfit.running import engine
from running.plan_tables import GOOD, NO_REMAKES, ONE_OP

pytestmark = pytest.mark.usefixtures("on_its_own")

MB = 1_000_000


def ones(megabytes: float) -> torch.Tensor:
    return torch.ones(int(megabytes * MB / 4))


@pytest.mark.parametrize("keep", [torch.Tensor.numpy, torch.Tensor.data_ptr, torch.Tensor.clone], ids=str)
def test_scalars_kept_between_large_tensors_leave_room_for_a_larger_one(keep):
    with session(12 * MB, "ram", device="cpu") as s:
        work, kept = [], []
        for _ in range(11):
            work.append(ones(1))
            scalar = torch.full((1,), 7.0)
            kept.append((scalar, keep(scalar)))
        work.clear()
        assert ones(11.5).sum() == 11.5 * MB / 4
        assert all(scalar.item() == 7 for scalar, _ in kept)
    assert s.stats.peak_footprint_bytes <= 12 * MB


@pytest.mark.unstressed("where storages lie between ops")
def test_small_storages_made_before_the_limit_lie_on_the_shelf_too():
    native = engine.load()
    with session(None, "ram", device="cpu"):
        large, small = [], []
        for i in range(8):
            large.append(ones(1))
            small.append(torch.full((3,), float(i)))
        native.set_budget(9 * MB)
        address = native.original_of(torch.Tensor.data_ptr)
        at_home = [tensor for tensor in large if native.is_resident(tensor)]
        assert all(native.is_resident(tensor) for tensor in small) and at_home
        assert max(map(address, small)) < min(map(address, at_home))
        assert [tensor[0].item() for tensor in small] == list(range(8))


@pytest.mark.parametrize("left", [4, 1, 0.01], ids="{} MB below it".format)
@pytest.mark.parametrize("right", [4, 9], ids="{} MB above it".format)
def test_a_large_tensor_whose_memory_escapes_moves_out_of_the_way_first(left, right):
    with session(12 * MB, "ram", device="cpu"):
        below, pinned, above = ones(left), torch.arange(2 * MB / 4), ones(right)
        array = pinned.numpy()
        del below, above
        assert ones(9.5).sum() == 9.5 * MB / 4
        assert (array == range(2 * MB // 4)).all() and array.ctypes.data == pinned.data_ptr()


def longest_refused(tensors: list[tuple[int, bool, bool]]) -> str:
    """Return the message with which a tensor is refused that has room beside those whose memory escaped."""
    with session(12 * MB, "ram", device="cpu"):
        others, arrays, left = [], [], 12 * MB - 12 * LARGEST_SMALL_BYTES  # where small ones were, a hole may be
        for i, (size, escapes, leaves) in enumerate(tensors):
            tensor = torch.full((size,), i, dtype=torch.uint8)
            if escapes and left - size > 5 * MB:
                arrays.append(tensor.numpy())
                left -= size
            else:
                others.append(tensor)
            if leaves and others:
                del others[len(others) // 2]
        try:
            torch.zeros(left, dtype=torch.uint8)
        except BudgetError as error:
            return str(error)
        assert all((array == array[0]).all() for array in arrays)
    return ""


@given(st.lists(st.tuples(st.integers(1, 3 * MB), st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_however_tensors_come_and_go_those_whose_memory_escapes_cut_nothing_in_two(tensors):
    assert longest_refused(tensors) == ""


def test_random_states_that_checkpoints_save_cut_nothing_in_two():
    def step() -> None:
        x = torch.ones(1000, 200, requires_grad=True)
        for _ in range(8):
            x = checkpoint(lambda y: torch.tanh(torch.dropout(y, 0.1, True)), x, use_reentrant=False)
        torch.log_softmax(x.sum() * torch.ones(1000, 1000), 1).sum().backward()

    torch.manual_seed(0)
    with session(13 * MB, "ram", device="cpu") as s:
        for _ in range(4):
            step()
    assert s.stats.peak_footprint_bytes <= 13 * MB


def test_an_op_of_new_sizes_has_its_small_inputs_moved_aside():
    with session(11 * MB, "ram", device="cpu"):
        left = ones(4)
        a, b = torch.ones(20, 512), torch.ones(20, 5000)
        right = ones(4)
        del left, right
        assert torch.mm(a.t(), b).shape == (512, 5000)  # 10.2 MB, and 0.44 of inputs


def small_ones_above_others(count: int, others: int = 40) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return `count` small tensors that are away, and others, which lie where those were: they come in above them."""
    small = [torch.full((2500,), float(i)) for i in range(count)]
    rest = [torch.full((2500,), -1.0) for _ in range(others)]
    assert ones(11.9).sum() == 11.9 * MB / 4
    assert not any(engine.load().is_resident(tensor) for tensor in small + rest)
    assert all(tensor.sum() == -2500 for tensor in rest)
    return small, rest


def multiplied(column: torch.Tensor, row: torch.Tensor) -> float:
    """Make 11.8 MB of them, and return one of those numbers."""
    return torch.mm(column.view(-1, 1), row[:1180].view(1, -1))[-1, -1].item()


@pytest.mark.unstressed("where storages lie between ops")
def test_an_op_has_the_room_of_small_storages_that_lie_below_its_own():
    with session(12 * MB, "ram", device="cpu", grow=False, split="never", map="never"):
        multiplied(torch.ones(2500), torch.ones(2500))  # so that it is known what it needs
        (_, column, row), rest = small_ones_above_others(3)
        assert column.sum() == 2500 and row.sum() == 5000  # now they are there
        assert multiplied(column, row) == 2 and all(tensor.sum() == -2500 for tensor in rest)


@pytest.mark.unstressed("where storages lie between ops")
@pytest.mark.parametrize(("more", "fits"), [(0, True), (64, False)])
def test_a_plan_has_the_room_of_small_storages_that_lie_below_those_that_stay(more, fits):
    native = engine.load()
    with session(12 * MB, "ram", device="cpu"):
        staying, rest = small_ones_above_others(4)
        zone = 12 * MB // 64 * 64 - 4 * 10_048  # all but what those take that stay
        ids = [native.block_id(tensor) for tensor in staying]
        assert native.use_plan(GOOD, zone + more, 1, ONE_OP, NO_REMAKES, ids, True) == fits
        assert all(native.is_resident(tensor) for tensor in staying)
        assert [tensor[0].item() for tensor in staying] == [0, 1, 2, 3] and all(t.sum() == -2500 for t in rest)


def many_sizes_in_turn() -> Session:
    with session(int(1.03 * 6 * MB), "ram", device="cpu") as s:
        for i in range(1, 40):
            x = torch.full((2 * MB // 4 - 1000 * i,), float(i))
            y = x * 2 + x
            assert y.min() == y.max() == 3.0 * i
            del x, y
    return s


def test_many_sizes_in_turn_fit_with_three_percent_to_spare():
    many_sizes_in_turn()


@pytest.mark.unstressed("how often storages move")
def test_many_sizes_in_turn_seldom_move():
    stats = many_sizes_in_turn().stats
    assert stats.relocations < 80 and stats.evictions == 0


@pytest.mark.unmapped
def test_what_must_stay_is_named_with_its_line_and_the_number_is_above_the_budget():
    with session(8 * MB, "ram", device="cpu"):
        kept = torch.UntypedStorage(MB)
        kept = torch.empty(MB, dtype=torch.uint8)
        with pytest.raises(BudgetError) as caught:
            ones(7.5)
        assert kept.shape == (MB,)
    text = str(caught.value)
    assert "made but not used by any op yet at " in text and "test_shelf.py:" in text
    assert caught.value.required_bytes > 8 * MB


@pytest.mark.parametrize("budget", [3 * MB, 5 * MB, 7 * MB])
def test_the_smallest_budget_that_an_error_names_is_above_the_refused_one_and_has_room(budget):
    def work() -> None:
        kept = [torch.ones(1).numpy() for _ in range(3)]
        a, b = torch.ones(1000, 250), torch.ones(250, 1000)
        assert torch.mm(a, b)[0, 0] == 250 and len(kept) == 3
        assert torch.cat([a.reshape(-1), b.reshape(-1), ones(1)]).numel() == 750_000

    for _ in range(6):
        try:
            with session(budget, "ram", device="cpu"):
                work()
            break
        except BudgetError as error:
            assert error.required_bytes > budget
            budget = error.required_bytes
    else:
        pytest.fail("no end of it")
    assert budget < 8 * MB


@pytest.mark.unmapped
def test_a_message_has_the_tensors_of_its_own_op():
    with session(3 << 20, "ram", device="cpu"):
        big, w = ones(1.6), torch.ones(1000, 300)
        w.mul_(2)
        with pytest.raises(BudgetError) as caught:
            torch.mm(torch.ones(2000, 8), torch.ones(8, 2000))
        assert big.numel() and "Float[2000,8]" in str(caught.value) and "Float[1000,300]" not in str(caught.value)


@pytest.mark.unmapped
def test_equal_tensors_are_counted_and_not_listed():
    with session(1 << 20, "ram", device="cpu"):
        parts, many = [torch.ones(1, 28, 28) for _ in range(19)], torch.ones(100, 28, 28)
        with pytest.raises(BudgetError, match=r"19 x Float\[1,28,28\] of a storage of 3\.06 KiB .*Float\[100,28,28\]"):
            torch.cat([*parts, *[many] * 30])


def test_small_storages_leave_for_an_op_that_needs_the_whole_arena():
    with session(4 << 20, "ram", device="cpu") as s:
        small = [torch.full((8,), float(i)) for i in range(50)]
        assert torch.zeros(4 << 20, dtype=torch.uint8).shape == (4 << 20,)
        assert [t[3].item() for t in small] == list(range(50))
    assert s.stats.peak_footprint_bytes <= 4 << 20
