"""A signal in mid-training leaves no file and no wrong weight, and the exit code is plain Python's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(120)

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


@pytest.mark.long
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


@pytest.mark.long
def test_an_interrupt_of_memfit_run_leaves_no_file_and_the_exit_code_of_plain_python(tmp_path):
    folder = tmp_path / "tier"
    folder.mkdir()
    path = script(tmp_path, f"{TRAINING}\ntrain()\n")
    command = ["-m", "memfit", "run", "--budget", "200000", "--tier", f"disk:{folder}", path]
    code, stderr = interrupt([sys.executable, *command], signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert not list(folder.iterdir())
    assert "KeyboardInterrupt" in stderr and "script.py" in stderr


@pytest.mark.long
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
