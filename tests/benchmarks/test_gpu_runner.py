"""The GPU benchmarks' runner: which cells run, within which time, what is kept and taken up again."""

import json
import time

import pytest

from benchmarks.common.options import parser_of
from benchmarks.gpu import probe, runner
from benchmarks.gpu.bench import Bench, Options, read
from benchmarks.gpu.largest import answer
from benchmarks.gpu.sweep import PERCENTS, order


class Cells:
    """Stands in for the processes: notes what was asked for and answers as told."""

    def __init__(self, **outcomes):
        self.outcomes, self.asked = outcomes, []

    def __call__(self, request, limit_s, start):
        self.asked.append((request, limit_s, start))
        return {"status": "ok", "seconds": 0.1, "result": {"value": 1}} | self.outcomes.get(request["name"], {})


def bench(folder, cells, seconds=100.0, **options):
    return Bench("part", Options(folder, **options), time.monotonic() + seconds, run_cell=cells)


def test_a_cell_gets_the_options_and_its_result_is_in_the_file_at_once(tmp_path):
    cells = Cells()
    made = bench(tmp_path, cells, device="cpu", quick=True, start="spawn")
    assert made.run("a", "module:function", 30, name="a", batch=4) == {"value": 1}
    request, limit_s, start = cells.asked[0]
    assert (limit_s, start) == (30, "spawn")
    assert request == {
        "call": "module:function",
        "device": "cpu",
        "quick": True,
        "limit_s": 30,
        "name": "a",
        "batch": 4,
    }
    kept = read(tmp_path / "part.json")
    assert kept["cells"]["a"]["result"] == {"value": 1}
    assert not kept["complete"]
    made.save(complete=True)
    assert read(tmp_path / "part.json")["complete"]


def test_a_failed_cell_has_no_result_and_is_kept_with_its_error(tmp_path):
    made = bench(tmp_path, Cells(a={"status": "error", "error": "no", "result": {"some": 1}}))
    assert made.run("a", "m:f", 30, name="a") is None
    assert read(tmp_path / "part.json")["cells"]["a"]["error"] == "no"
    assert not made.skipped


def test_without_time_a_cell_is_not_begun_and_the_part_not_complete(tmp_path):
    cells = Cells()
    made = bench(tmp_path, cells, seconds=1)
    assert made.run("a", "m:f", 30, name="a") is None
    assert not cells.asked
    assert made.skipped == ["a"]


def test_a_cell_cut_by_the_parts_deadline_is_to_be_run_again(tmp_path):
    cells = Cells(a={"status": "timeout", "error": "slow", "result": None})
    made = bench(tmp_path, cells, seconds=10)
    made.run("a", "m:f", 30, name="a")
    assert cells.asked[0][1] <= 10
    assert made.cells["a"]["status"] == "cut"
    again = bench(tmp_path, cells, resume=True)
    again.run("a", "m:f", 30, name="a")
    assert again.cells["a"]["status"] == "timeout"


def test_resume_runs_only_what_is_missing_and_retry_also_what_failed(tmp_path):
    first = bench(tmp_path, Cells(b={"status": "crash", "error": "gone", "result": None}))
    for key in "ab":
        first.run(key, "m:f", 30, name=key)
    first.save(complete=True)
    for retry, expected in ((False, ["c"]), (True, ["b", "c"])):
        cells = Cells()
        made = bench(tmp_path, cells, resume=True, retry=retry)
        results = [made.run(key, "m:f", 30, name=key) for key in "abc"]
        assert [request["name"] for request, _, _ in cells.asked] == expected
        assert results[0] == {"value": 1}
        (tmp_path / "part.json").write_text(json.dumps(read(tmp_path / "part.json") | {"cells": first.cells}))


def test_results_of_other_settings_or_broken_files_are_not_taken_up(tmp_path):
    made = bench(tmp_path, Cells())
    made.run("a", "m:f", 30, name="a")
    assert bench(tmp_path, Cells(), resume=True).cells
    assert not bench(tmp_path, Cells(), resume=True, quick=True).cells
    (tmp_path / "part.json").write_text('{"cells": {"a"')
    assert not bench(tmp_path, Cells(), resume=True).cells


def test_without_an_engine_only_cells_that_need_it_fail(tmp_path):
    cells = Cells()
    made = bench(tmp_path, cells, engine_error="no engine: no compiler")
    assert made.run("a", "m:f", 30, memfit=True, name="a") is None
    assert made.run("b", "m:f", 30, name="b") == {"value": 1}
    assert made.cells["a"]["error"] == "no engine: no compiler"


def options_of(run, argv):
    return parser_of(run, "gpu", "").parse_args(argv)


def test_parts_are_chosen_by_name(capsys):
    args = options_of(runner.run, ["--only", "peers", "sweep", "--quick", "--limit", "60"])
    assert args.only == ["peers", "sweep"] and args.quick and args.limit == 60 and args.device == "cuda"
    assert options_of(runner.run, []).only == ("sweep", "overhead", "peers", "largest", "mapped")
    assert options_of(probe.run, []).only == ("probe",)
    with pytest.raises(SystemExit):
        options_of(runner.run, ["--only", "nothing"])


def test_time_that_a_part_leaves_goes_to_the_next_ones():
    parts = list(runner.PARTS)
    assert sum(runner.PARTS.values()) == pytest.approx(1)
    assert runner.share_s(parts, 100) == pytest.approx(100 * runner.PARTS[parts[0]])
    assert runner.share_s(parts[-1:], 90) == runner.share_s([runner.PROBE], 90) == pytest.approx(90)


def test_a_part_that_fails_by_itself_keeps_what_it_measured(tmp_path, monkeypatch):
    class Broken:
        @staticmethod
        def measure(made):
            made.cells["a"] = {"status": "ok", "result": {}, "seconds": 0}
            raise KeyError("oh")

        @staticmethod
        def tables(cells):
            return []

    monkeypatch.setattr(runner.importlib, "import_module", lambda name: Broken)
    result = runner.run_part("broken", Options(tmp_path), {}, 10)
    assert result.exit_code == 3 and "KeyError" in result.notes[0]
    kept = read(tmp_path / "broken.json")
    assert "KeyError" in kept["about"]["part_error"] and "a" in kept["cells"] and not kept["complete"]


def test_a_run_gives_each_part_its_tables_and_what_failed(tmp_path, monkeypatch):
    def run_cell(request, limit_s, start):
        facts = {"name": "cpu", "torch": "2"}
        return {"status": "ok", "seconds": 1.0, "result": facts}

    class Part:
        @staticmethod
        def measure(made):
            made.cells["a"] = {"status": "crash", "error": "gone"}

        @staticmethod
        def tables(cells):
            return []

    monkeypatch.setattr(runner, "run_cell", run_cell)
    monkeypatch.setattr(runner.importlib, "import_module", lambda name: Part)
    (result,) = runner.run(device="cpu", only=["largest"], out=tmp_path)
    assert result.exit_code == 0 and result.tables[0].rows == [["a", "crash", "gone"]]
    (again,) = runner.run(tables=True, only=["largest"], out=tmp_path)
    assert again.tables == result.tables


def test_the_sweep_begins_with_what_tells_most_and_leaves_nothing_out():
    models = ("a", "b", "c")
    found = order(models)
    assert found[0] == ("a", 60)
    assert sorted(found) == sorted((model, percent) for model in models for percent in PERCENTS)
    assert found.index(("c", 40)) < found.index(("c", 100))


def test_a_devices_folder_has_its_short_name():
    assert runner.folder_name("NVIDIA H200") == "h200"
    assert runner.folder_name("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert runner.folder_name("NVIDIA GeForce RTX 4090") == "rtx-4090"


def test_a_search_says_what_it_knows():
    def tries(*sizes):
        return [{"size": size, "fits": fits} for size, fits in sizes]

    assert answer({"result": {"tries": tries((8, True), (16, False), (12, True)), "largest": 12}}) == "12"
    assert answer({"result": {"tries": tries((8, True), (16, False))}}) == "8 to 15"
    assert answer({"result": {"tries": tries((8, True))}}) == ">= 8"
    assert answer({}) == "-"
