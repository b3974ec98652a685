import json
import random
from dataclasses import replace

import pytest
from hypothesis import given

from memfit.errors import InputError
from memfit.files import load_trace, save_trace
from memfit.ir import Category, Demand, Handover, Phase
from trace_builder import TraceBuilder, traces


@given(trace=traces())
def test_round_trip_is_exact(tmp_path, trace):
    for name in ("trace.json", "trace.json.gz"):
        save_trace(trace, tmp_path / name)
        assert load_trace(tmp_path / name) == trace


def test_round_trip_keeps_types_and_awkward_values(tmp_path):
    builder = TraceBuilder()
    builder.op("a\udc80\n", outputs=[2**62], duration_us=0.1 + 0.2, source='"\\modèle.py:1')
    trace = builder.build(script="/tmp/\udcff.py")
    save_trace(trace, tmp_path / "t")
    loaded = load_trace(tmp_path / "t")
    assert loaded == trace
    assert isinstance(loaded.storages[0].category, Category)
    assert isinstance(loaded.ops[0].phase, Phase)
    assert isinstance(loaded.ops[0].duration_us, float)
    assert isinstance(loaded.ops[0].reads, tuple)


def test_a_file_from_before_handovers_has_none(tmp_path, document):
    del document["handovers"]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert load_trace(tmp_path / "old.json").handovers == ()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("module", ["Net.0", "Net.1"]),
        ("stored_bytes", [3, 8]),
        ("pinned_from", [None, 1]),
        ("pinned_by", ["", "a.py:1"]),
    ],
)
def test_newer_fields_are_kept_and_a_file_from_before_them_has_none(tmp_path, field, values):
    builder = TraceBuilder()
    builder.op(outputs=[8, 8])
    trace = builder.build()
    pairs = zip(trace.storages, values, strict=True)
    named = replace(trace, storages=tuple(replace(storage, **{field: value}) for storage, value in pairs))
    save_trace(named, tmp_path / "new.json")
    assert load_trace(tmp_path / "new.json") == named
    document = json.loads((tmp_path / "new.json").read_text())
    del document["storages"][field]
    (tmp_path / "old.json").write_text(json.dumps(document))
    assert load_trace(tmp_path / "old.json") == trace


def test_ten_thousand_ops_stay_well_under_five_megabytes(tmp_path):
    rng = random.Random(1)
    builder = TraceBuilder()
    kept = []
    for i in range(10_000):
        source = f"/home/someone/project/train.py:{i % 500}"
        kept += builder.op(
            f"aten::op_{i % 80}",
            reads=kept[-3:],
            outputs=[rng.randrange(2**32)],
            duration_us=rng.random() * 1e3,
            source=source,
        )
    save_trace(builder.build(), tmp_path / "t.json")
    assert (tmp_path / "t.json").stat().st_size < 2_000_000


@pytest.fixture
def document(tmp_path):
    """A small valid trace file, as parsed JSON."""
    builder = TraceBuilder(alignment=64)
    weight = builder.before(256)
    (out,) = builder.op("aten::mm", reads=[weight], outputs=[64], scratch=[32])
    (active,) = builder.op("aten::relu", reads=[out], outputs=[64])
    builder.free(out)
    builder.op("aten::add_", reads=[weight], writes=[weight])
    save_trace(builder.build(handovers=(Handover(1, out, active),)), tmp_path / "good.json")
    return json.loads((tmp_path / "good.json").read_text())


# Storages: 0 weight, before and after; 1 of mm, ticks 0 to 4; 2 scratch, ticks 1 to 2; 3 of relu, from 3.
# Ops: 0 mm from tick 0, 1 relu from tick 3, 2 add_ from tick 5; 5 ticks in all.
CORRUPTIONS = [
    (("ticks",), None, "ticks is missing"),
    (("ticks",), 4, r"ops.first_tick\[2\] is 5, outside \[3, 4\]"),
    (("ticks",), 2.5, "ticks is not an integer"),
    (("ticks",), True, "ticks is not an integer"),
    (("iteration",), -1, "iteration is -1"),
    (("alignment",), 0, "alignment is 0"),
    (("pinned_bytes",), -8, "pinned_bytes is -8"),
    (("pinned_bytes",), 2**63, "pinned_bytes is"),
    (("script",), 7, "script is not a string"),
    (("strings",), {}, "strings is not a list"),
    (("strings", 0), 3, r"strings\[0\] is not a string"),
    (("ops",), [], "ops is not an object"),
    (("storages", "size_bytes", 1), -64, r"storages.size_bytes\[1\] is -64"),
    (("storages", "size_bytes", 1), "64", r"storages.size_bytes\[1\] is not an integer"),
    (("storages", "size_bytes"), [256, 64, 32], "category has 4 entries instead of 3"),
    (("storages", "category", 0), 999, r"category\[0\] is 999"),
    (("storages", "category", 0), "mm", r"category\[0\] is 'aten::mm', not one of parameter, gradient"),
    (("storages", "alloc", 0), 1, r"alloc\[0\] is 1"),
    (("storages", "alloc", 3), 0, r"alloc\[3\] is 0, but its tick is in op 1"),
    (("storages", "free", 0), 2, r"free\[0\] is 2"),
    (("storages", "free", 1), 3, r"free\[1\] is 3, but its tick is in op 1"),
    (("storages", "alloc_tick", 0), -2, r"alloc_tick\[0\] is -2"),
    (("storages", "alloc_tick", 2), 0, r"alloc_tick\[2\] is 0, which another event has"),
    (("storages", "free_tick", 2), 1, r"free_tick\[2\] is 1"),
    (("storages", "pinned_from", 3), 0, r"pinned_from\[3\] is 0, outside \[1, 3\]"),
    (("storages", "pinned_from", 0), -2, r"pinned_from\[0\] is -2"),
    (("storages", "free_tick", 3), 6, r"free_tick\[3\] is 6"),
    (("ops", "duration_us", 1), -1.0, r"ops.duration_us\[1\] is not a duration"),
    (("ops", "duration_us", 1), float("nan"), r"ops.duration_us\[1\] is not a duration: nan"),
    (("ops", "duration_us", 1), float("inf"), r"ops.duration_us\[1\] is not a duration: inf"),
    (("ops", "duration_us", 1), None, r"ops.duration_us\[1\] is not a duration"),
    (("ops", "phase", 0), "mm", r"ops.phase\[0\] is 'aten::mm', not one of forward"),
    (("ops", "first_tick", 1), 6, r"ops.first_tick\[1\] is 6"),
    (("ops", "first_tick"), [3, 0, 5], r"ops.first_tick\[1\] is 0, outside \[3, 5\]"),
    (("ops", "workspace_bytes", 0), -1, r"ops.workspace_bytes\[0\] is -1"),
    (("ops", "read_count", 0), 2, "ops.reads has 3 entries instead of 4"),
    (("ops", "reads", 0), 4, "ops.reads of op 0 names storage 4, which does not exist"),
    (("ops", "reads", 1), 2, r"ops.reads of op 1 names storage 2, alive only in \[0, 1\)"),
    (("ops", "writes", 0), 3, r"ops.writes of op 0 names storage 3, alive only in \[1, 3\)"),
    (("handovers",), [], "handovers is not an object"),
    (("handovers", "op", 0), 3, r"handovers.op\[0\] is 3, but there are 3 ops"),
    (("handovers", "giver"), [], "handovers.giver has 0 entries instead of 1"),
    (("handovers", "giver", 0), 0, r"handovers.giver\[0\] is 0, which op 1 does not read, or writes"),
    (("handovers", "taker", 0), 2, r"handovers.taker\[0\] is 2, which op 1 does not make with the giver's bytes"),
]


@pytest.mark.parametrize(("place", "value", "match"), CORRUPTIONS)
def test_a_corrupt_field_is_named(tmp_path, document, place, value, match):
    *parents, last = place
    target = document
    for key in parents:
        target = target[key]
    if value is None and last == "ticks":
        del target[last]
    elif value == "mm":
        target[last] = document["strings"].index("aten::mm")
    else:
        target[last] = value
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=match) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"alloc_tick": 2, "free_tick": 1}, r"free_tick\[2\] is 1, outside \(2, 5\]"),
        ({"alloc": 1, "free": 0}, r"free\[2\] is 0"),
    ],
)
def test_a_lifetime_that_ends_before_it_begins_is_refused(tmp_path, document, changes, match):
    # Each value alone would do for scratch that op 0 allocates at tick 1 and frees at tick 2.
    for field, value in changes.items():
        document["storages"][field][2] = value
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=match):
        load_trace(tmp_path / "bad.json")


def test_a_trace_without_ops_is_refused(tmp_path):
    save_trace(TraceBuilder().build(), tmp_path / "empty.json")
    with pytest.raises(InputError, match="at least one op"):
        load_trace(tmp_path / "empty.json")


def test_any_file_cut_short_is_refused(tmp_path, document):
    whole = json.dumps(document)
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.json").write_text(whole[:length])
        with pytest.raises(InputError):
            load_trace(tmp_path / "cut.json")


def test_what_ran_before_the_iteration_is_kept_and_may_be_absent(tmp_path):
    builder = TraceBuilder()
    builder.op(outputs=[8])
    trace = builder.build(before=Demand("aten::qr", "init.py:2", 4096, 64, 0, 128))
    path = tmp_path / "trace.json"
    save_trace(trace, path)
    assert load_trace(path) == trace
    document = json.loads(path.read_text())
    del document["before"]
    path.write_text(json.dumps(document))
    assert load_trace(path) == replace(trace, before=None)
