"""The benchmark of compiled models: what it says of its figures, and that it times a real kernel."""

from __future__ import annotations

import pytest

from benchmarks.cpu import compiled
from trace_builder import TraceBuilder


def test_the_largest_op_is_named_with_its_working_set() -> None:
    builder = TraceBuilder()
    one, other = builder.before(1024), builder.before(2048)
    builder.op("small", reads=[one])
    builder.op("large", reads=[one], writes=[other])
    assert compiled.largest(builder.build()) == ("large", 3072)


def test_the_tables_say_what_was_equal_how_low_it_went_what_a_call_costs_and_what_is_kept() -> None:
    shares = [{"share": share, "equal": share != "25%", "planned_iterations": 9} for share in compiled.SHARES]
    floor = {"op": "inductor::one", "working_set": 2_000_000, "share": 1.05, "tensors": [2, 4, 12]}
    us = {"plain": [0.1, 0.1, 0.1], "attached": [0.6, 0.7, 5.0], "limited": [1.1, 1.0, 0.9],
          "planned": [0.8, 0.9, 0.7]}  # fmt: skip
    kept = {"program": "mlp", "torch": {"peak": 20_000_000, "budget": 8_000_000, "bytes_out": 100},
            "recompute": {"peak": 15_000_000, "budget": 8_000_000, "bytes_out": 80}}  # fmt: skip
    assert compiled.table([{"program": "mlp", "shares": shares, "floor": floor}]).rows == [
        ["mlp", "equal, 9 of 14 planned", "equal, 9 of 14 planned", "DIFFERENT, 9 of 14 planned", "2.0 MB",
         "inductor::one", "1.05x", "6.0, 12 at most"]
    ]  # fmt: skip
    assert compiled.call_table({"4": us}).rows == [["4", "+0.60 us", "+0.90 us", "+0.70 us"]]
    assert compiled.kept_table([kept]).rows == [["mlp", "20.0 MB", "15.0 MB", "8.0 MB", "0.80x"]]


@pytest.mark.slow
def test_calls_of_a_kernel_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_REPEATS", 3)
    monkeypatch.setattr(compiled, "_TURNS", 3)
    us = compiled.us_a_call([4])["4"]
    assert tuple(us) == compiled.WAYS
    assert 0 < min(us["plain"]) < min(min(us[way]) for way in compiled.WAYS[1:])
