"""`memfit report` on a small trace of a chain of layers."""

from __future__ import annotations

import pytest

from cli.small_trace import SIZE, chain_in, run
from memfit.cli import main


@pytest.fixture
def trace(tmp_path):
    return chain_in(tmp_path)


def test_a_report_has_the_trace_and_a_plan(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    out, err = run(capsys, "report", trace, "--budget", "70%", "--points", "3", "--effort", "0.02", "-o", str(path))
    assert out.startswith("Within 4.20 MiB, 70 % of its peak") and err == f"next: open {path} in a browser\n"
    text = path.read_text()
    assert text.startswith("<!doctype html>") and 'id="lanes"' in text and 'id="slider"' in text


def test_a_plans_file_is_drawn_as_it_is(tmp_path, capsys, trace):
    plan, path = str(tmp_path / "p.json"), tmp_path / "r.html"
    run(capsys, "plan", trace, "--budget", "80%", "-o", plan)
    out, _ = run(capsys, "report", trace, plan, "--points", "0", "-o", str(path))
    assert out.startswith(f"Within {SIZE * 6 * 80 // 100 / SIZE:.2f} MiB, 80 %")
    assert 'id="slider"' not in path.read_text()


def test_two_iterations_are_compared(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    out, _ = run(capsys, "report", trace, "--against", trace, "--points", "0", "-o", str(path))
    assert out.startswith("The peak is 6.00 MiB") and "Against " in path.read_text()


def test_a_file_that_is_there_is_kept_unless_it_is_forced(tmp_path, capsys, trace):
    path = tmp_path / "r.html"
    path.write_text("mine")
    assert main(["report", trace, "--points", "0", "-o", str(path)]) == 2
    assert path.read_text() == "mine" and "--force" in capsys.readouterr().err
    run(capsys, "report", trace, "--points", "0", "-o", str(path), "--force")
    assert path.read_text() != "mine"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["p.json", "--budget", "70%"], 2, "exclude each other"),
        (["--points", "1"], 2, "a curve has two or more"),
        (["--budget", "1KiB", "--points", "0"], 3, "1.00 KiB"),
        (["--against", "nowhere.json"], 1, "nowhere.json"),
    ],
)
def test_what_cannot_be_drawn_leaves_no_file(tmp_path, capsys, trace, arguments, code, says):
    path = tmp_path / "r.html"
    assert main(["report", trace, *arguments, "-o", str(path)]) == code
    assert says in capsys.readouterr().err and not path.exists()
