"""The GPU benchmarks' arithmetic, and what their tables say."""

import time

import pytest

from benchmarks.common.result import GIB, gib
from benchmarks.gpu import largest as largest_part
from benchmarks.gpu import mapped, overhead, peers, probe, sweep
from benchmarks.gpu.bench import Bench, Options
from benchmarks.gpu.largest import largest
from benchmarks.gpu.probe_link import sizes
from benchmarks.gpu.work import HIGH, LOW, TARGET, _planned_steps, moved, scaled_batch


def test_a_batch_whose_run_is_in_the_range_stays():
    assert scaled_batch(64, 16, 25 * GIB, 5 * GIB) == 64


@pytest.mark.parametrize("peak", [5, 100])
def test_a_batch_outside_of_it_is_set_anew_by_what_grows(peak):
    batch = scaled_batch(32, 4, peak * GIB, 2 * GIB)
    assert batch % 4 == 0
    foreseen = 2 * GIB + (peak - 2) * GIB / 32 * batch
    assert LOW <= foreseen <= TARGET < HIGH


def test_a_batch_is_never_less_than_its_multiple():
    assert scaled_batch(8, 8, 100 * GIB, 90 * GIB) == 8


@pytest.mark.parametrize("limit", [0, 1, 5, 8, 37, 63, 64])
def test_the_largest_size_is_found_to_six_percent(limit):
    asked = []

    def fits(size):
        asked.append(size)
        return size <= limit

    good, bad = largest(fits, 8, 64)
    assert good <= limit and (bad is None) == (limit >= 64)
    assert limit - good <= max(0.06 * good, 1)
    assert len(asked) == len(set(asked))


def test_a_search_out_of_time_says_between_what():
    turns = iter([False, False, False, True, True, True])
    assert largest(lambda size: size < 20, 8, 64, lambda: next(turns)) == (16, 32)


def test_sizes_are_printed_so_that_small_ones_are_seen():
    assert gib(3 * GIB) == "3.00"
    assert gib(3 << 20) == "3.0 MiB"
    assert gib(None) == "-"


def test_copies_are_measured_from_4_kib_to_1_gib():
    assert sizes(False)[0] == 4 << 10 and sizes(False)[-1] == 1 << 30
    assert sizes(True)[-1] == 4 << 20


def row(planned, derailments=0, out=0, plans=1):
    return {"planned": planned, "derailments": derailments, "plans": plans, "bytes_out": out, "bytes_in": 2 * out}


def test_only_steps_that_ran_by_the_last_plan_to_their_end_count_as_planned():
    assert _planned_steps([row(False), row(True), row(True), row(True)]) == 2
    assert _planned_steps([row(True), row(True), row(True, plans=2), row(True, plans=2)]) == 1
    assert _planned_steps([row(True), row(True, 1), row(True, 1)]) == 1
    assert _planned_steps([row(True), row(False)]) == 0


def test_bytes_moved_are_those_of_the_last_steps():
    assert moved([row(True, out=100), *(row(True, out=1000 + 10 * n) for n in range(9))]) == {"out": 10, "in": 20}
    assert moved([row(True)]) == {}


PLAIN = {"losses": ["a", "b", "c"], "fingerprints": {"2": "x", "3": "y"}, "repeats": True, "batch": 4,
         "median_ms": {"step": 100.0, "forward": 40.0, "backward": 50.0, "optimizer": 10.0},
         "peak_bytes": 20 * GIB, "driver": {"peak_bytes": 23 * GIB, "left_bytes": GIB}}  # fmt: skip
LIMITED = {"losses": ["a", "b", "c"], "fingerprints": {"3": "y"}, "batch": 4, "budget_bytes": 12 * GIB,
           "median_ms": {"step": 110.0, "forward": 45.0, "backward": 55.0, "optimizer": 10.0}, "settled": True,
           "times_ms": [{"step": 250.0}] * 12,
           "plan": {"swaps": 3, "drops": 40, "foreseen_us": 108_000.0, "compute_us": 100_000.0},
           "planned_steps": 4, "rows": [row(True)] * 12, "moved": {"out": 2e9, "in": 4e9},
           "driver": {"peak_bytes": 13 * GIB, "left_bytes": GIB}}  # fmt: skip
LINK = {"out_gb_per_s": 50.0, "in_gb_per_s": 80.0}


def ok(result):
    return {"status": "ok", "seconds": 1.0, "result": result}


def test_bits_are_compared_step_by_step_and_where_both_have_a_fingerprint():
    assert sweep.bits(PLAIN, LIMITED) == "equal"
    assert sweep.bits(PLAIN, LIMITED | {"losses": ["a", "z"]}) == "loss 2 differs"
    assert sweep.bits(PLAIN, LIMITED | {"fingerprints": {"3": "z"}}) == "weights differ"
    assert sweep.bits(PLAIN, LIMITED | {"fingerprints": {}}) == "losses equal, weights not compared"
    assert sweep.bits(PLAIN | {"repeats": False}, LIMITED | {"losses": ["z"]}).endswith("(plain differs too)")


def test_the_budget_is_held_against_the_drivers_peak_without_the_context():
    assert sweep.held(LIMITED) == (12 * GIB, "yes")
    over = LIMITED | {"driver": {"peak_bytes": 14 * GIB, "left_bytes": GIB}}
    assert sweep.held(over) == (13 * GIB, "no, +1.00")
    assert sweep.held(LIMITED | {"driver": {"peak_bytes": None, "left_bytes": None}}) == (None, "-")


def test_the_links_bound_stands_against_the_passes_it_hides_under():
    bound = sweep.bound(PLAIN, LIMITED, LINK)
    assert bound == pytest.approx({"out_ms": 40, "in_ms": 50, "out_share": 1.0, "in_share": 1.0})
    assert sweep.bound(PLAIN, LIMITED, {"out_gb_per_s": None}) == {}


def test_every_row_has_all_columns():
    cells = {"link": ok(LINK), "llama/plain": ok(PLAIN), "llama/60": ok(LIMITED),
             "llama/30": ok({"batch": 4, "budget_bytes": GIB, "infeasible": "no", "required_bytes": 2 * GIB}),
             "vgg16/plain": {"status": "crash"}}  # fmt: skip
    (table,) = sweep.tables(cells)
    assert [len(line) for line in table[2]] == [len(table[1])] * 2
    assert table[2][0][6:10] == ["100.0", "2.5x", "3 swaps, 40 re-runs, +8.0%", "1.100x"] and "equal" in table[2][0]
    assert table[2][1][-1] == "infeasible, needs 2.00"


def test_memfit_stands_beside_a_peer_at_its_peak_and_is_run_once_for_peaks_alike():
    cells = {"llama/plain": ok(PLAIN), "llama/checkpoint": ok(PLAIN | {"peak_bytes": 12 * GIB}),
             "llama/memfit@checkpoint": ok(LIMITED)}  # fmt: skip
    assert peers.twin("selective", "llama", int(12.1 * GIB), cells) == "llama/memfit@checkpoint"
    assert peers.twin("selective", "llama", 15 * GIB, cells) == "llama/memfit@selective"
    (table,) = peers.tables(cells)
    assert [len(line) for line in table[2]] == [len(table[1])] * 2
    assert table[2][0][-1] == "not run" and "110.0 ms" in table[2][1]


def test_some_ways_alone_stand_beside_the_plain_run_of_the_sweep(tmp_path):
    asked = []

    def cell(request, limit_s, start):
        asked.append((request["call"].partition(":")[2], request.get("mode"), request.get("batch")))
        result = LIMITED if request["call"].endswith("limited") else PLAIN | {"peak_bytes": 12 * GIB}
        return {"status": "ok", "seconds": 1.0, "result": result}

    def bench(name, **chosen):
        options = Options(tmp_path, models=("llama",), **chosen)
        return Bench(name, options, time.monotonic() + 100, run_cell=cell)

    sweep.measure(made := bench("sweep", percents=(60,)))
    assert list(made.cells) == ["link", "llama/plain", "llama/60"]
    asked.clear()
    peers.measure(made := bench("peers", modes=("checkpoint",)))
    assert asked == [("plain", "checkpoint", 4), ("limited", None, 4)]
    (table,) = peers.tables(made.cells)
    assert [row[1] for row in table.rows] == ["plain", "checkpoint per block"]


def test_attached_steps_are_compared_in_pairs():
    pairs = [{"plain_ms": 10.0, "attached_ms": ms, "bytes_out": 0} for ms in (10.1, 10.3, 10.2)]
    sizes = [{"size_bytes": 512, "storage": {"plain_ns": 100.0, "attached_ns": 250.0}}]
    cells = {"llama/pairs": ok({"pairs": pairs, "batch": 6}), "vgg16/pairs": {"status": "error"},
             "allocations": ok({"sizes": sizes})}  # fmt: skip
    steps, alone = overhead.tables(cells)
    assert steps.rows == [["llama", "6", "10.00", "1.0200x", "1.0100 to 1.0300", "0.00"]]
    assert [len(table.rows[0]) for table in (steps, alone)] == [6, 5]
    assert alone.rows[0][-1] == "+150"


def test_the_table_of_mapped_ops_has_a_row_for_each_mechanism():
    way = {"ms": 30.0, "same_bits": True, "budget_bytes": GIB // 2, "peak_bytes": GIB, "left_bytes": GIB // 2}
    found = {"operand_bytes": GIB, "plain_ms": 10.0, "zero-copy": way, "managed": way | {"same_bits": False}}
    (table,) = mapped.tables({"add": ok(found), "mm": {"status": "error"}})
    assert table.rows[0] == ["add", "zero-copy", "1.000", "0.500", "10.00", "30.00", "3.0x", "0.50", "equal"]
    assert table.rows[1][1] == "managed" and table.rows[1][-1] == "DIFFER" and len(table.rows) == 2


def test_tables_of_nothing_are_none():
    for part in (sweep, peers, overhead, largest_part, mapped, probe):
        assert part.tables({}) == []


def test_the_probes_tables_have_all_columns():
    link = [{"size_bytes": 4096, "one_us": 5.0, "in_a_row_us": 3.0, "gb_per_s": 1.4}]
    product = {"side": 8192, "product_us": 1.0, "tflop_per_s": 700.0,
               "out": {"gb_per_s": {"out": 50.0}, "product_slowdown": 1.01},
               "out+in": {"gb_per_s": {"out": 40.0, "in": 41.0}, "product_slowdown": 1.02}}  # fmt: skip
    pinned = dict.fromkeys(
        ("torch_first_ms", "torch_again_ms", "register_fresh_ms", "register_touched_ms", "unregister_ms"), 1.0
    )
    seen = {"seen": 3, "profiled": 4, "dispatched": 5, "phases": {"forward": 3}, "only_profiled": {"aten::add": 1}}
    cells = {"link": ok({"out": link, "in": link}), "both ways": ok({"out_gb_per_s": 1.0, "in_gb_per_s": 2.0}),
             "under a product": ok(product), "pinned": ok({"sizes": [pinned | {"size_bytes": GIB}]}),
             "inside": ok({"sizes": [{"size_bytes": GIB, "us": 1.0, "gb_per_s": 1.0}]}),
             "coverage": ok({"optimizers": {"sgd": seen, "adamw": {"error": "no"}}}), "guard": ok({"resident": True}),
             "allocator": {"status": "crash"}}  # fmt: skip
    tables = probe.tables(cells)
    assert len(tables) == 7
    assert all(len(line) == len(columns) for _, columns, rows in tables for line in rows)
