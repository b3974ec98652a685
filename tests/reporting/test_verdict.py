"""The report of `memfit verify`, as text."""

from __future__ import annotations

import pytest

from memfit.reporting.verdict import RunInfo, VerdictReport, to_text


@pytest.mark.parametrize(("growths", "said"), [(0, False), (3, True)])
def test_a_limit_that_gave_way_is_said(growths, said):
    stats = {"peak_footprint_bytes": 15 << 20, "budget_bytes": 12 << 20, "bytes_out": 0, "bytes_in": 0,
             "growths": growths, "peak_growth_bytes": 3 << 20}  # fmt: skip
    plain, limited = RunInfo(1.0, 1 << 30, None, ""), RunInfo(2.0, 1 << 30, stats, "")
    text = to_text(VerdictReport(True, 2, {"loss": 2}, {}, None, plain, limited))
    assert ("the limit gave way 3 times, by 3.00 MiB at most" in text) == said
