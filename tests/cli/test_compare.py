import json
import os
import pickle
import subprocess
import sys

import pytest

from memfit.baselines.allocators import allocator_names
from memfit.cli import main
from memfit.files import save_trace
from snapshot_builder import event, snapshot
from trace_builder import TraceBuilder

CSV = "id,lower,upper,size\na,0,9,1000000\nb,3,5,2000000\n"


def csv_file(tmp_path):
    (tmp_path / "t.csv").write_text(CSV)
    return str(tmp_path / "t.csv")


def test_a_table_on_stdout_and_the_next_command_on_stderr(tmp_path, capsys):
    path = csv_file(tmp_path)
    assert main(["compare", path]) == 0
    out, err = capsys.readouterr()
    assert "2 storages, 4 mallocs and frees, 2.86 MiB (3,000,000 bytes) live at the peak" in out
    assert all(name in out for name in (*allocator_names(), "memfit"))
    assert err == f"next: memfit compare --json {path}\n"


def test_json_is_all_that_is_printed(tmp_path, capsys):
    assert main(["compare", "--json", "--allocators", "bfc,none", csv_file(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert [row["allocator"] for row in json.loads(out)["rows"]] == ["none", "bfc"]
    assert err == ""


def test_a_trace_and_a_snapshot(tmp_path, capsys):
    builder = TraceBuilder()
    builder.before(100)
    builder.op(outputs=[50])
    save_trace(builder.build(), tmp_path / "t.json.gz")
    assert main(["compare", "--json", str(tmp_path / "t.json.gz")]) == 0
    assert json.loads(capsys.readouterr().out)["peak_live_bytes"] == 150
    traces = [event("alloc", 512, 7)], [event("alloc", 512, 8), event("alloc", 1024, 8)]
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(snapshot(*traces)))
    for options, peak in ([], 16), (["--device", "0"], 7):
        assert main(["compare", "--json", *options, str(tmp_path / "s.pickle")]) == 0
        assert json.loads(capsys.readouterr().out)["peak_live_bytes"] == peak


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--allocators", "nonsense"], 2, "there is no allocator 'nonsense'"),
        (["--device", "1"], 2, "no devices"),
        (["--device", "x"], 2, "invalid int"),
    ],
)
def test_usage_errors_exit_2(tmp_path, capsys, options, code, message):
    assert main(["compare", *options, csv_file(tmp_path)]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("memfit: error: ") and message in err


def test_a_bad_file_is_one_message_and_exit_code_1(tmp_path, capsys):
    (tmp_path / "t.csv").write_text(CSV + "c,5,5,1\n")
    assert main(["compare", str(tmp_path / "t.csv")]) == 1
    assert "line 4: upper is 5" in capsys.readouterr().err


def test_a_hostile_snapshot_is_refused_and_not_run(tmp_path, capsys):
    class Hostile:
        def __reduce__(self):
            return (os.system, (f"touch {tmp_path / 'ran'}",))

    (tmp_path / "s").write_bytes(pickle.dumps(Hostile()))
    assert main(["compare", str(tmp_path / "s")]) == 1
    assert "not a pickle of plain data" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_it_works_without_torch(tmp_path):
    program = (
        "import sys; sys.modules['torch'] = None\nfrom memfit.cli import main\nraise SystemExit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "compare", csv_file(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "pytorch" in done.stdout
