"""The benchmarks of paging: the simulator is as near to the runs as the documents say."""

from __future__ import annotations

import json

import pytest

from benchmarks.offline import managed, page_faults
from memfit.machine import profile
from trace_builder import TraceBuilder

MEASURED = [run for run in page_faults.MEASURED if run.sweeps == 1 and run.op != "aten::index_add_"]


@pytest.mark.parametrize("run", MEASURED, ids=lambda run: f"{run.op} {run.chunk_kib}K")
def test_streams_and_rows_come_in_within_five_percent_of_what_was_measured(run):
    assert page_faults.foreseen(run)[0] == pytest.approx(run.into_mib, rel=0.03)


def test_other_runs_are_read_from_a_file(tmp_path):
    runs = [{"op": "aten::sin", "operands_mib": [8], "writes": [], "window_mib": 4, "chunk_kib": 64, "into_mib": 8.0,
             "out_mib": None}]  # fmt: skip
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    (result,) = page_faults.run(runs=tmp_path / "runs.json")
    assert [row["foreseen_into_mib"] for row in result.figures] == [8.0]
    assert result.tables[0].rows[0][7] == "8 (+0.0%)"


def test_below_the_floor_a_plan_has_no_cell_and_managed_memory_has_one():
    builder = TraceBuilder(alignment=512)
    x, y = builder.before(16 << 20), builder.before(16 << 20)
    builder.op("aten::add", reads=[x, y], duration_us=1000.0)
    found = managed.model("small", builder.build(), profile("uvm"), (100,), ("um-naive", "swap"))
    rows = managed.table([found]).rows
    assert rows[0] == ["small", "100 %", "0.00x (0.0 GB)", "0.00x (0.0 GB)"]
    assert rows[1][1] == "50 % (below the floor)" and rows[1][3] == "-" and rows[1][2].endswith("x (0.1 GB)")
