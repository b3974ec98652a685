"""A tier that fails costs an op, never bytes: the error says what and why, and the rest is as it was."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import memfit
from memfit.errors import InputError, TierError
from memfit.running import engine
from memfit.running.engine.disturbed import DisturbedTier
from memfit.running.engine.tiers import TierSpec
from running.helpers_training import mlp, others_hidden

pytestmark = pytest.mark.timeout(120)

BUDGET = 60_000
NUMBERS = 2_500  # of floats in a tensor: five fit the budget


def faulty(folder: Path, kind: str = "disk", **faults: object) -> DisturbedTier:
    return DisturbedTier(kind, str(folder) if kind == "disk" else "", **faults)


def row(value: int) -> Tensor:
    return torch.full((NUMBERS,), float(value))


def holds(tensor: Tensor, value: int) -> bool:
    return torch.equal(tensor, torch.full((NUMBERS,), float(value)))


def fill(rows: list[Tensor], count: int) -> None:
    """Append `count` rows, numbered as they come."""
    for _ in range(count):
        rows.append(row(len(rows)))


def is_ordinary(tensor: Tensor) -> bool:
    return engine.load().block_id(tensor) == -1


@pytest.fixture(autouse=True)
def on_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a test that fails from failing others: end the session it left active."""
    begun: list[memfit.Session] = []
    enter = memfit.Session.__enter__
    monkeypatch.setattr(memfit.Session, "__enter__", lambda session: begun.append(session) or enter(session))
    with others_hidden():
        yield
        left = engine.load().active()
        if left:
            engine.load().stop()
            begun[-1]._contexts.close()
    assert not left


@pytest.fixture
def rows() -> Iterator[list[Tensor]]:
    made: list[Tensor] = []
    yield made
    made.clear()  # a failed test's traceback keeps the list


# --- writes


@pytest.mark.unstressed("how often the tier is written to and read")
@pytest.mark.parametrize("kind", ["ram", "disk"])
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("nth", [1, 4])
def test_a_write_that_fails_ends_one_op_and_loses_nothing(tmp_path, nth, repeat, kind, rows):
    with (
        pytest.raises(TierError, match=r"(?s)aten::\w+ could not get its bytes.*write failed.*test_faults\.py:\d+"),
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


@pytest.mark.parametrize("kind", ["ram", "disk"])
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
def test_a_corrupted_read_is_noticed_by_its_checksum_and_can_be_tried_again(tmp_path, rows):
    with memfit.session(BUDGET, faulty(tmp_path, corrupt_read=2, checked=True)):
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


# --- in the middle of training


def step(model: nn.Module, x: Tensor) -> float:
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss.item()


def update(model: nn.Module) -> None:
    for parameter in model.parameters():
        insistently(lambda p=parameter: p.data.sub_(p.grad, alpha=0.1))


FAILURES: list[str] = []


def insistently(action: Callable[[], object]) -> object:
    """Run `action`, which can be repeated, until it does not fail."""
    for _ in range(3):
        try:
            return action()
        except RuntimeError as error:
            FAILURES.append(str(error))
    return action()


def train(steps: int = 4) -> tuple[list[object], list[Tensor]]:
    torch.manual_seed(0)
    model, x = mlp(), torch.randn(32, 64)
    losses = []
    for _ in range(steps):
        losses.append(insistently(lambda: step(model, x)))
        update(model)
    return losses, [p.detach() for p in model.parameters()]


@pytest.mark.unstressed("how often the tier is written to and read")
@pytest.mark.parametrize("fault", ["fail_write", "fail_read", "corrupt_read"])
def test_training_that_repeats_what_failed_gets_the_plain_result(tmp_path, fault):
    plain_losses, plain_weights = train()
    failed = []
    for nth in (1, 2, 3, 5, 8, 12, 17, 20):
        FAILURES.clear()
        with memfit.session(BUDGET, faulty(tmp_path, checked=True, **{fault: nth})):
            losses, weights = insistently(train)
        assert losses == plain_losses
        assert all(torch.equal(a, b) for a, b in zip(weights, plain_weights, strict=True))
        failed += FAILURES
    assert 3 <= len(failed) <= 8  # one each, but for writes that were not needed and faults that never came
    assert all("injected" in message or "checksum" in message for message in failed)


@pytest.mark.parametrize("fault", ["fail_write", "fail_read"])
def test_an_optimizer_step_that_fails_for_good_is_a_tier_error_and_keeps_what_can_be_kept(tmp_path, fault):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    with (
        pytest.raises(TierError, match="injected fault"),
        memfit.session(BUDGET, faulty(tmp_path, repeat=True, **{fault: 30})),
    ):
        for _ in range(50):
            step(model, torch.ones(32, 64))
            optimizer.step()
    whole = [p for p in model.parameters() if is_ordinary(p)]
    assert all(p.isfinite().all() for p in whole)
    assert len(whole) == len(before) or fault == "fail_read"


# --- adoption and the switch to a share


def test_a_write_that_fails_while_a_model_is_adopted_leaves_no_session_and_the_model_whole(tmp_path, rows):
    fill(rows, 12)
    with (
        pytest.raises(TierError, match="write failed"),
        memfit.session(BUDGET, faulty(tmp_path, fail_write=2, repeat=True)),
    ):
        pytest.fail("entered")
    assert not engine.load().active()
    assert all(is_ordinary(tensor) and holds(tensor, value) for value, tensor in enumerate(rows))


@pytest.mark.unstressed("how often the tier is written to and read")
def test_a_write_that_fails_when_a_share_takes_effect_does_not_end_the_limit(tmp_path):
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    failures = []
    with memfit.session("60%", faulty(tmp_path, fail_write=1)) as session:
        for _ in range(5):
            step(model, torch.ones(32, 64))
            try:
                optimizer.step()
            except TierError as error:
                failures.append(str(error))
        assert len(failures) == 1 and "write failed" in failures[0]
        assert session.stats.budget_bytes > 0
        assert session.stats.footprint_bytes <= session.stats.budget_bytes


# --- interrupts where it hurts


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_while_a_session_begins_or_ends_leaves_everything_in_ordinary_memory(monkeypatch, call, rows):
    fill(rows, 12)
    calls = []
    get_objects = gc.get_objects

    def interrupted() -> list[object]:
        calls.append(None)
        if len(calls) == call:
            raise KeyboardInterrupt
        return get_objects()

    monkeypatch.setattr(gc, "get_objects", interrupted)
    with pytest.raises(KeyboardInterrupt), memfit.session(BUDGET, "ram"):
        rows[0].add_(0)
    assert not engine.load().active()
    assert all(is_ordinary(tensor) and holds(tensor, value) for value, tensor in enumerate(rows))


# --- folders


def mounted(folder: Path, options: str) -> None:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a file system of a given size takes root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")


def unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    mounted(folder, "size=2m")
    yield folder
    unmount(folder)


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "read-only"
    mounted(folder, "ro,size=1m")
    yield folder
    unmount(folder)


def test_a_full_disk_says_so_loses_nothing_and_the_session_goes_on_when_there_is_room_again(small_disk):
    made: list[Tensor] = []
    with memfit.session(1_000_000, f"disk:{small_disk}"):
        with pytest.raises(TierError, match=r"No space left on device \(\d+ bytes free\); free some space") as caught:
            for value in range(100):
                made.append(torch.full((50_000,), float(value)))
        assert str(small_disk) in str(caught.value)
        assert 8 <= len(made) <= 16  # 1 MB in the arena and about 2 MB on the disk
        assert made[-1][0].item() == len(made) - 1  # resident
        del made[2:6]
        made += [torch.full((50_000,), float(value)) for value in range(3)]
    values = [tensor[0].item() for tensor in made]
    assert values == [0, 1, *range(6, len(made) + 1), 0, 1, 2]
    assert all((tensor == tensor[0]).all() for tensor in made)


def test_a_disk_that_others_fill_up_loses_nothing(small_disk):
    """An overwrite of a slot that is there already may fail too."""
    made = [torch.full((50_000,), float(value)) for value in range(8)]
    hog = small_disk / "hog"
    with memfit.session(700_000, f"disk:{small_disk}"):
        for tensor in made:
            tensor.add_(1)
        with open(hog, "wb") as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
        failed = 0
        for tensor in made:
            try:
                tensor.add_(1)
            except RuntimeError:
                failed += 1
        hog.unlink(missing_ok=True)
    values = sorted(tensor[0].item() for tensor in made)
    assert sum(values) == sum(range(8)) + 16 - failed
    assert all((tensor == tensor[0]).all() for tensor in made)


def test_a_read_only_folder_is_refused_by_name_with_a_remedy(read_only_disk):
    with pytest.raises(InputError, match=rf"(?s){read_only_disk}.*cannot be written.*--tier disk:PATH"):
        memfit.session("1MiB", f"disk:{read_only_disk}")
    with (
        pytest.raises(TierError, match="cannot make a file.*Read-only"),
        memfit.session("1MiB", TierSpec("disk", str(read_only_disk))),
    ):
        pytest.fail("entered")


def test_a_folder_that_takes_no_files_is_refused_when_the_session_starts():
    with (
        pytest.raises(TierError, match="cannot make a file in '/proc'.*--tier disk:PATH"),
        memfit.session("1MiB", TierSpec("disk", "/proc")),
    ):
        pytest.fail("entered")


def test_a_missing_folder_is_refused_by_name_with_a_remedy(tmp_path):
    with pytest.raises(InputError, match=r"(?s)gone' does not exist.*mkdir -p"):
        memfit.session("1MiB", f"disk:{tmp_path}/gone")
    with pytest.raises(TierError, match="No such file"), memfit.session("1MiB", TierSpec("disk", f"{tmp_path}/gone")):
        pytest.fail("entered")


def test_a_folder_that_is_removed_while_in_use_harms_nothing(tmp_path, rows):
    folder = tmp_path / "tier"
    folder.mkdir()
    with memfit.session(BUDGET, f"disk:{folder}") as session:
        fill(rows, 10)
        shutil.rmtree(folder)
        fill(rows, 10)
        assert session.stats.tier_used_bytes > 0
        assert rows[0].sum().item() == 0
    assert all(holds(tensor, value) for value, tensor in enumerate(rows))


# --- nothing is left behind


def test_no_file_is_seen_in_the_folder_while_the_session_runs_or_after_it(tmp_path, rows):
    with pytest.raises(ValueError), memfit.session(BUDGET, f"disk:{tmp_path}"):
        fill(rows, 20)
        assert not list(tmp_path.iterdir())
        raise ValueError
    assert not list(tmp_path.iterdir())


TRAINING = """
import sys, torch, memfit
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
optimizer = torch.optim.Adam(model.parameters())
def train():
    for step in range(10**9):
        optimizer.zero_grad()
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        if step == 3:
            print("training", flush=True)
"""
IN_SESSION = f"{TRAINING}\nwith memfit.session(200_000, 'disk:' + sys.argv[1]) as session:\n    train()\n"


def heed() -> None:
    """A process started in the background ignores interrupts, and so would its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def interrupt(command: list[str], how: signal.Signals) -> tuple[int, str]:
    """Send `how` to the command once it trains; returns the exit code as a shell shows it, and stderr."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    try:
        assert process.stdout.readline() == "training\n", process.stderr.read()
        process.send_signal(how)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    code = process.returncode
    return (128 - code if code < 0 else code), stderr


def script(folder: Path, text: str) -> str:
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


TERMINATED = pytest.param(signal.SIGTERM, marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, TERMINATED])
def test_a_signal_in_mid_step_leaves_no_file_and_the_exit_code_of_plain_python(tmp_path, how):
    folder = tmp_path / "tier"
    folder.mkdir()
    code, stderr = interrupt([sys.executable, script(tmp_path, IN_SESSION), str(folder)], how)
    assert code == 128 + how
    assert not list(folder.iterdir())
    if how is signal.SIGINT:
        assert stderr.rstrip().endswith("KeyboardInterrupt")
        assert "memfit" not in stderr.splitlines()[-1]


def test_an_interrupt_of_memfit_run_leaves_no_file_and_the_exit_code_of_plain_python(tmp_path):
    folder = tmp_path / "tier"
    folder.mkdir()
    path = script(tmp_path, f"{TRAINING}\ntrain()\n")
    command = ["-m", "memfit", "run", "--budget", "200000", "--tier", f"disk:{folder}", path]
    code, stderr = interrupt([sys.executable, *command], signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert not list(folder.iterdir())
    assert "KeyboardInterrupt" in stderr and "script.py" in stderr


def test_a_script_that_catches_the_interrupt_trains_on_with_the_right_weights(tmp_path):
    text = f"""{TRAINING}
with memfit.session(200_000, 'disk:' + sys.argv[1]) as session:
    try:
        train()
    except KeyboardInterrupt:
        pass
    weights = [p.sum().item() for p in model.parameters()]
assert weights == [p.sum().item() for p in model.parameters()]
assert all(p.isfinite().all() for p in model.parameters())
assert session.stats.peak_footprint_bytes <= 200_000
model(torch.randn(32, 64)).square().mean().backward()
optimizer.step()
"""
    code, stderr = interrupt([sys.executable, script(tmp_path, text), str(tmp_path)], signal.SIGINT)
    assert (code, stderr) == (0, "")
