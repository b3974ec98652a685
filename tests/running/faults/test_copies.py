"""A tier that fails costs an op, never bytes: the error says what and why, and the rest is as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

import memfit
from memfit.errors import TierError
from running.faults.rows import BUDGET, NUMBERS, faulty, fill, holds, row
from running.pressure import is_ordinary

pytestmark = [pytest.mark.timeout(120), pytest.mark.copied("what the tier has to read and write")]


# --- writes


@pytest.mark.unstressed("how often the tier is written to and read")
@pytest.mark.parametrize("kind", ["ram", "disk", "disk,compress"])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("nth", [1, 4])
def test_a_write_that_fails_ends_one_op_and_loses_nothing(tmp_path, nth, repeat, kind, rows):
    with (
        pytest.raises(TierError, match=r"(?s)aten::\w+ could not get its bytes.*write failed.*rows\.py:\d+"),
        memfit.session(BUDGET, faulty(tmp_path, kind, fail_write=nth, repeat=repeat)),
    ):
        fill(rows, 20)
    assert len(rows) >= 5
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))
    assert all(is_ordinary(tensor) for tensor in rows)


@pytest.mark.unstressed("how often the tier is written to and read")
def test_a_write_that_failed_once_succeeds_when_the_op_is_run_again(tmp_path, rows):
    with memfit.session(BUDGET, faulty(tmp_path, fail_write=3)) as session:
        with pytest.raises(TierError):
            fill(rows, 20)
        fill(rows, 20 - len(rows))
        assert all(tensor.sum().item() == value * NUMBERS for value, tensor in enumerate(rows))
        assert session.stats.peak_footprint_bytes <= BUDGET
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))


def test_what_needs_no_write_goes_on_when_every_write_fails(tmp_path, rows):
    with memfit.session(BUDGET, faulty(tmp_path, fail_write=1, repeat=True)):
        with pytest.raises(TierError):
            fill(rows, 20)
        with pytest.raises(RuntimeError, match="write failed"):
            row(0)
        rows[2].add_(100)
        del rows[3]
        assert row(9)[0].item() == 9  # in the place of the one that went
    assert holds(rows[2], 102) and holds(rows[0], 0) and holds(rows[3], 4)


# --- reads


@pytest.mark.parametrize("kind", ["ram", "disk", "disk,compress"])
def test_a_read_that_fails_ends_one_op_and_can_be_tried_again(tmp_path, kind, rows):
    with memfit.session(BUDGET, faulty(tmp_path, kind, fail_read=1)) as session:
        fill(rows, 10)
        with pytest.raises(RuntimeError, match="read failed"):
            rows[0].sum()
        assert rows[0].sum().item() == 0
        assert rows[1].add_(1).sum().item() == 2 * NUMBERS
        assert session.stats.bytes_in > 0
    assert holds(rows[1], 2)
    assert all(holds(rows[value], value) for value in (0, *range(2, 10)))


def test_a_read_error_that_ends_the_session_is_a_tier_error(tmp_path, rows):
    with (
        pytest.raises(TierError, match="aten::sum could not get its bytes.*read failed"),
        memfit.session(BUDGET, faulty(tmp_path, fail_read=1)),
    ):
        fill(rows, 10)
        rows[0].sum()
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))


DOORS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda t: t.numpy(),
    "tolist": lambda t: t.tolist(),
    "data_ptr": lambda t: t.data_ptr(),
    "clone": lambda t: t.clone(),
    "in place": lambda t: t.mul_(1),
    "storage": lambda t: t.untyped_storage().tolist(),
    "backward": lambda t: t.requires_grad_().square().sum().backward(),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_failed_read_is_an_error_at_every_door_and_only_once(tmp_path, door, rows):
    with memfit.session(BUDGET, faulty(tmp_path, fail_read=1)):
        fill(rows, 10)
        with pytest.raises(RuntimeError, match="read failed"):
            DOORS[door](rows[0])
        DOORS[door](rows[0])
        assert holds(rows[0].detach(), 0)
    assert all(holds(tensor.detach(), value) for value, tensor in enumerate(rows))


@pytest.mark.unstressed("how often the tier is written to and read")
@pytest.mark.parametrize("tier", [{"checked": True}, {"kind": "disk,compress"}])
def test_a_corrupted_read_is_noticed_by_its_checksum_and_can_be_tried_again(tmp_path, tier, rows):
    with memfit.session(BUDGET, faulty(tmp_path, corrupt_read=2, **tier)):
        fill(rows, 10)
        assert rows[0].sum().item() == 0
        with pytest.raises(RuntimeError, match=r"differ from those written \(checksum\)"):
            rows[1].sum()
        assert holds(rows[1], 1)
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))


@pytest.mark.unstressed("how often the tier is written to and read")
def test_reads_that_fail_at_the_end_are_reported_and_everything_else_is_there(tmp_path, rows):
    with (
        pytest.raises(TierError, match=r"(?s)could not be read back.*9\.77 KiB.*read failed"),
        memfit.session(BUDGET, faulty(tmp_path, fail_read=1, repeat=True)),
    ):
        fill(rows, 12)
    here = [value for value, tensor in enumerate(rows) if is_ordinary(tensor)]
    assert 4 <= len(here) <= 6 and all(holds(rows[value], value) for value in here)
    for value in set(range(12)) - set(here):
        with pytest.raises(RuntimeError, match="could not be read back"):
            rows[value].sum()
        with pytest.raises(RuntimeError, match="could not be read back"):
            rows[value].numpy()


def test_one_read_that_fails_at_the_end_costs_one_tensor_at_most(tmp_path, rows):
    with (
        pytest.raises(TierError, match="could not be read back"),
        memfit.session(BUDGET, faulty(tmp_path, fail_read=1)),
    ):
        fill(rows, 12)
    lost = [value for value, tensor in enumerate(rows) if not is_ordinary(tensor)]
    assert len(lost) == 1
    with memfit.session(BUDGET, "ram"):  # the old tier still has its bytes
        assert holds(rows[lost[0]], lost[0])
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))


def test_what_one_session_lost_is_no_error_of_the_next(tmp_path, rows):
    with pytest.raises(TierError), memfit.session(BUDGET, faulty(tmp_path, fail_read=1, repeat=True)):
        fill(rows, 12)
    with memfit.session(BUDGET, "ram"):
        assert holds(row(5), 5)


def test_the_users_own_exception_is_not_hidden_by_reads_that_fail_at_the_end(tmp_path, rows):
    with pytest.raises(ValueError, match="own"), memfit.session(BUDGET, faulty(tmp_path, fail_read=1, repeat=True)):
        fill(rows, 12)
        raise ValueError("own")
