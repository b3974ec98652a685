"""Folders that are full, read-only, missing or removed; and no file is seen in those that are none of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import memfit
from memfit.errors import InputError, TierError
from memfit.running.engine.tiers import TierSpec
from running.faults.rows import BUDGET, fill, holds

pytestmark = [pytest.mark.timeout(120), pytest.mark.copied("what the tier has to read and write")]


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a file system of a given size takes root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "small", "size=2m") as folder:
        yield folder


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "read-only", "ro,size=1m") as folder:
        yield folder


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
        with open(hog, "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(65536))
        failed = 0
        for tensor in made:
            try:
                tensor.add_(1)
            except RuntimeError:  # or not: the slots that are free may do
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
