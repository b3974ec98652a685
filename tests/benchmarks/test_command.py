"""`python -m benchmarks`: what there is, what runs, and where results go."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import pytest

from benchmarks import __main__ as command
from benchmarks.__main__ import about, benchmarks
from benchmarks.common import examples
from benchmarks.common.options import called, parser_of
from benchmarks.common.paths import ROOT
from benchmarks.common.result import Result, Table, grouped, mb, write_json

OFFLINE = ["allocators", "bounds", "packing", "peers", "recomputing", "record_models", "scaling", "swapping"]


class Fake:
    """Stands in for two benchmarks."""

    def __init__(self, codes):
        self.codes, self.ran = codes, []

    def run(self, *, steps: int = 1):
        self.ran.append(steps)
        yield Result("one", {"steps": steps}, [Table("t", ["a", "b"], [["x", 1]])], ["a note"], self.codes.pop(0))


@pytest.fixture
def fake(monkeypatch):
    made = Fake([0, 0])
    monkeypatch.setattr(command, "benchmarks", lambda: {"first": "f", "second": "s"})
    monkeypatch.setattr(command, "import_module", lambda name: made)
    return made


def test_every_benchmark_says_what_it_measures_and_has_what_the_command_needs():
    for name, module in benchmarks().items():
        assert about(module), name
    assert {*OFFLINE, "demo", "paper_smartpool", "gpu"} <= set(benchmarks())


@pytest.mark.parametrize("name", benchmarks())
def test_every_benchmark_can_be_imported_and_knows_its_options(name):
    if name == "gpu_estimate":
        pytest.importorskip("transformers")
    parser = parser_of(import_module(benchmarks()[name]).run, name, "")
    assert parser.format_help()


def options(
    first: str, rest: Sequence[str], *, many: Sequence[int] = (1,), one: Annotated[str, {"choices": ["a"]}] = "a",
    path: Path | None = None, dry_run: bool = False, out: Path | None = None,
):  # fmt: skip
    return [first, rest, many, one, path, dry_run, out]


def test_options_are_the_parameters_of_run(capsys):
    parser = parser_of(options, "name", "")
    parser.add_argument("--out", type=Path)
    assert called(options, parser.parse_args(["x"])) == ["x", [], (1,), "a", None, False, None]
    argv = ["--many", "2", "3", "--path", "p", "--dry-run", "--out", "o", "x", "--", "y", "-z"]
    assert called(options, parser.parse_args(argv)) == ["x", ["y", "-z"], [2, 3], "a", Path("p"), True, Path("o")]
    with pytest.raises(SystemExit):
        parser.parse_args(["x", "--one", "b"])


def test_the_list_imports_nothing_heavy():
    code = "import sys; from benchmarks.__main__ import main; main(['--list']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "packing" in done.stdout


def test_several_run_in_turn_with_the_same_options_and_results_go_to_the_folder(fake, tmp_path, capsys):
    assert command.main(["first", "second", "--steps", "3", "--out", str(tmp_path)]) == 0
    assert fake.ran == [3, 3]
    assert json.loads((tmp_path / "one.json").read_text()) == {"steps": 3}
    printed = capsys.readouterr().out
    assert "a note" in printed and "x" in printed


def test_a_benchmark_that_fails_is_the_last_and_its_code_the_commands(fake, tmp_path):
    fake.codes = [4, 0]
    assert command.main(["first", "second", "--out", str(tmp_path)]) == 4
    assert fake.ran == [1]


@pytest.mark.parametrize("argv", [[], ["nothing"]])
def test_without_a_known_name_the_command_says_how_to_see_them(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main(argv)
    assert ended.value.code == 2
    assert "--list" in capsys.readouterr().err


def test_a_result_without_a_name_writes_nothing(tmp_path):
    Result("", None).report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_is_written_whole_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "new" / "a.json"
    write_json(path, [1])
    assert [each.name for each in path.parent.iterdir()] == ["a.json"]


def test_rows_are_grouped_in_their_order_and_sizes_have_three_digits():
    rows = [{"example": name, "n": n} for n, name in enumerate("bab")]
    assert {name: [row["n"] for row in group] for name, group in grouped(rows).items()} == {"b": [0, 2], "a": [1]}
    assert (mb(1_234_567), mb(123_456_789)) == ("1.2 MB", "123 MB")


def test_steps_are_timed_from_one_to_the_next():
    run = {"steps": [{"at": at} for at in (0.0, 5.0, 6.0, 8.0, 9.0)], "error": "", "peak_rss_bytes": 1}
    assert [examples.median_step(run, skip) for skip in range(4)] == [1.5, 1.0, 1.5, 1.0]
    assert examples.median_step(run) == 1.5


@pytest.mark.slow
def test_a_worker_trains_and_tells_what_its_steps_cost(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "layer = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), 0.1)\n"
        "for _ in range(3):\n"
        "    layer(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    plain = examples.run_worker(str(script), [], "plain")
    assert len(plain["steps"]) == 3 and not plain["error"]
    inside = examples.run_worker(str(script), [], 1 << 20, tier="ram")
    assert inside["stats"]["budget_bytes"] == 1 << 20 and inside["steps"][-1]["ops"] > 0
