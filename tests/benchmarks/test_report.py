"""The benchmark of reports: iterations as long as they are asked for, and a file of each."""

from __future__ import annotations

import pytest

from benchmarks.offline import report


@pytest.mark.long
def test_an_iteration_has_about_the_ops_asked_for_and_its_report_is_written(tmp_path):
    row = report.measure(400, tmp_path, None)
    assert 300 < row["ops"] < 500 and row["boxes"] > 100
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size == row["size_bytes"] > 50_000


def test_a_table_without_a_browser_has_no_frames():
    row = {"ops": 1, "boxes": 2, "page_s": 1.0, "write_s": 2.0, "size_bytes": 3_000_000}
    assert report.table([row]).rows == [["1", "2", "1.00 s", "2.00 s", "3.00 MB", "-", "-", "-"]]
