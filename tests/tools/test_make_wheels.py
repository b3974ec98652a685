"""A wheel with engines in it: what it has, its tag, and that it works where there is no compiler."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from memfit import _native
from memfit.running.engine import prebuilt
from tools import make_wheels, try_wheel

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A wheel like memfit's own, with its compiled part alone."""
    folder = tmp_path / "made" / "memfit-1.0"
    about = folder / "memfit-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: memfit\nVersion: 1.0\n")
    (about / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n")
    (folder / "memfit").mkdir()
    shutil.copy(_native.__file__, folder / "memfit")
    subprocess.run([sys.executable, "-m", "wheel", "pack", "-d", tmp_path, folder], check=True, capture_output=True)
    return tmp_path / "memfit-1.0-cp311-cp311-linux_x86_64.whl"


@pytest.fixture
def engines(tmp_path: Path) -> list[Path]:
    """Two engines in their folders, as the loader's cache has them."""
    paths = [tmp_path / "cache" / folder / "memfit_engine.so" for folder in ("torch-2.13.0+cpu-0a", "torch-2.14.1-0b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        shutil.copy(_native.__file__, path)
    return paths


def test_the_engines_are_in_the_wheel_where_the_loader_looks_for_them(plain, engines, tmp_path, monkeypatch):
    wheel = make_wheels.with_engines(plain, [*engines, engines[0]], tmp_path)
    shutil.unpack_archive(wheel, tmp_path / "site", "zip")
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path / "site" / "memfit" / prebuilt.FOLDER.name)
    assert prebuilt.torch_versions() == ["2.13.0+cpu", "2.14.1"]
    for engine in engines:
        found = prebuilt.find([engine.parent.name], engine.name)
        assert found is not None and found.read_bytes() == engine.read_bytes()
    assert set(zipfile.ZipFile(plain).namelist()) < set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.long
def test_the_wheels_record_has_every_file_with_its_sum(plain, engines, tmp_path):
    wheel = make_wheels.tagged(make_wheels.with_engines(plain, engines, tmp_path), tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        rows = {name: sum for name, sum, _ in csv.reader(io.StringIO(archive.read(RECORD).decode()))}
        assert rows.keys() == {name for name in archive.namelist() if not name.endswith("/")}
        assert len([name for name in rows if "/_engines/" in name]) == 4
        for name in rows.keys() - {RECORD}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
            assert rows[name] == f"sha256={digest}"


RECORD = "memfit-1.0.dist-info/RECORD"


def test_the_tag_names_the_oldest_c_library_and_the_compiled_files_stay_as_they_were(plain, engines, tmp_path):
    wheel = make_wheels.tagged(make_wheels.with_engines(plain, engines, tmp_path), tmp_path / "dist")
    assert wheel.parent == tmp_path / "dist" and "-cp311-cp311-manylinux_2_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        (tag,) = (line for line in archive.read("memfit-1.0.dist-info/WHEEL").decode().splitlines() if "Tag:" in line)
        assert tag.removeprefix("Tag: ") in wheel.stem
        for engine in engines:
            assert archive.read(f"memfit/_engines/{engine.parent.name}/{engine.name}") == engine.read_bytes()


def test_a_python_of_another_abi_is_refused(monkeypatch, plain, tmp_path):
    monkeypatch.setattr(make_wheels, "_about_torch", lambda python: ["2.13.0", "None", "cpython-399-x86_64-linux-gnu"])
    with pytest.raises(SystemExit, match="cpython-399"):
        make_wheels.built_engine("python3.99", plain, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not all(map(shutil.which, try_wheel.NEEDED)), reason="mmdebstrap and bwrap make the container")
def test_a_wheel_trains_in_a_bare_container(tmp_path):
    import torch

    def tool(*words: str | Path) -> str:
        done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        return done.stdout

    tool("tools.make_wheels", "--python", sys.executable, "-o", tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    said = tool("tools.try_wheel", wheel, f"torch=={torch.__version__.partition('+')[0]}")
    assert "step 14 loss" in said and "came with memfit" in said and "none is needed" in said
