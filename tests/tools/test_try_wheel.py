"""A container for a wheel has pip's settings of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import try_wheel


def test_pips_settings_and_the_files_they_name_are_in_the_container(monkeypatch, tmp_path):
    for folder in ("wheels", "index/simple", "index/files"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "limits.txt").touch()
    listed = (
        f":env:.find-links='{tmp_path}/wheels'\n"
        f"global.constraint='{tmp_path}/limits.txt'\n"
        f"global.extra-index-url='file://{tmp_path}/index/simple https://index.invalid/simple'\n"
        f"global.cert='{tmp_path}/gone.crt'\n"
    )
    monkeypatch.setattr(
        try_wheel.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0, listed)
    )
    options = try_wheel._settings_of_pip()
    triples = set(zip(options, options[1:], options[2:], strict=False))
    assert ("--setenv", "PIP_CONSTRAINT", f"{tmp_path}/limits.txt") in triples
    assert (
        "--setenv",
        "PIP_EXTRA_INDEX_URL",
        f"file://{tmp_path}/index/simple https://index.invalid/simple",
    ) in triples
    bound = {Path(path) for word, path, _ in triples if word == "--ro-bind"}
    assert {tmp_path, tmp_path / "limits.txt", tmp_path / "index"} <= bound  # an index may point to files beside it
    assert tmp_path / "gone.crt" not in bound


def test_a_wheel_that_is_not_there_is_refused_before_a_container_is_made(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["try_wheel", "none.whl"])
    with pytest.raises(SystemExit):
        try_wheel.main()
    assert "there is no wheel none.whl" in capsys.readouterr().err
