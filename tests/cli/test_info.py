import json
import subprocess
import sys

import pytest

from memfit.cli import main
from memfit.files import save_trace
from trace_builder import TraceBuilder


def trace_file(path, *, workspace=10, script="train.py"):
    builder = TraceBuilder()
    builder.before(100)
    builder.op("aten::mm", outputs=[workspace])
    save_trace(builder.build(script=script), path)
    return str(path)


def test_text_on_stdout_and_the_next_command_on_stderr(tmp_path, capsys):
    assert main(["info", trace_file(tmp_path / "t.json")]) == 0
    out, err = capsys.readouterr()
    assert "110 B (110 bytes) live in op 0 aten::mm" in out
    assert err == "next: memfit run --budget 60% train.py\n"


def test_json_is_all_that_is_printed(tmp_path, capsys):
    assert main(["info", "--json", trace_file(tmp_path / "t.json.gz")]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["peak_bytes"] == 110
    assert err == ""


@pytest.mark.parametrize(("workspace", "percent"), [(100, 60), (200, 70), (10**6, 100)])
def test_the_next_command_suggests_a_budget_that_can_be_met(tmp_path, capsys, workspace, percent):
    main(["info", trace_file(tmp_path / "t.json", workspace=workspace)])
    assert f"--budget {percent}% " in capsys.readouterr().err


def test_the_next_command_can_be_pasted(tmp_path, capsys):
    main(["info", trace_file(tmp_path / "t.json", script="my script.py")])
    assert capsys.readouterr().err.endswith(" 'my script.py'\n")


def test_a_bad_file_is_one_message_and_exit_code_1(tmp_path, capsys):
    (tmp_path / "t.json").write_text("{}")
    assert main(["info", str(tmp_path / "t.json")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("memfit: error: ") and "is not a memfit trace" in err


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["info"], ["info", "--nonsense", "f"]])
def test_usage_errors_exit_2_and_point_to_help(argv, capsys):
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("memfit: error: ") and "--help" in err


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    path = trace_file(tmp_path / "t.json")
    command = f"{sys.executable} -m memfit info {path} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Error" not in done.stderr and "Traceback" not in done.stderr
