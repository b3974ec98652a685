"""From raw events to a trace, on recordings written by hand."""

from __future__ import annotations

from memfit.ir import BEFORE_FIRST_TICK, Category, Handover, Phase, Trace
from memfit.tracing.build import Roles, build_trace
from memfit.tracing.compressed import CompressedRecording
from tracing.recordings import recording

NAMES = ("aten::mm", "aten::add_")
SOURCES = ("/elsewhere/train.py:3", "/elsewhere/train.py:4")


class Events:
    """Writes the engine's tables in the order things happen."""

    def __init__(self) -> None:
        self.ops: list[list[int]] = []
        self.accesses: list[tuple[int, int, int]] = []
        self.ticks: list[tuple[int, int, int, int, int]] = []
        self.before: list[tuple[int, int, int]] = []
        self.handovers: list[tuple[int, int, int]] = []
        self.pins: list[tuple[int, int, int, int, int]] = []

    def op(self, *inside: tuple, name: int = 0, phase: int = 0, source: int = 0, forward: int = -1) -> None:
        """An op. `inside` are its events: ("read" | "write", block) or ("alloc" | "free", block, bytes)."""
        row = len(self.ops)
        begin, end = 1_000_000 * row, 1_000_000 * row + 2_500
        self.ops.append([name, phase, source, begin, end, len(self.ticks), 64 * row, forward, 0])
        for event in inside:
            if event[0] == "pin":
                self.pin(event[1], inside=1)
            elif event[0] in ("read", "write"):
                self.accesses.append((row, event[1], int(event[0] == "write")))
            else:
                self._tick(*event, inside=1)

    def pin(self, block: int, *, inside: int = 0) -> None:
        self.pins.append((block, len(self.ops), inside, len(self.ticks), 1))

    def alloc(self, block: int, size_bytes: int) -> None:
        self._tick("alloc", block, size_bytes, inside=0)

    def free(self, block: int, size_bytes: int) -> None:
        self._tick("free", block, size_bytes, inside=0)

    def _tick(self, what: str, block: int, size_bytes: int, *, inside: int) -> None:
        signed = size_bytes if what == "alloc" else -size_bytes
        self.ticks.append((block, signed, len(self.ops), inside, 1 if what == "alloc" else -1))

    def build(self, first: int = 0, last: int | None = None, roles: Roles | None = None) -> Trace:
        raw = recording(vars(self), NAMES, SOURCES)
        about = {"signature": "s", "torch_version": "2", "device": "cpu", "script": "train.py", "iteration": 1,
                 "alignment": 64}  # fmt: skip
        return build_trace(raw, first, len(self.ops) if last is None else last, roles or Roles(), **about)


def lifetimes(trace: Trace) -> list[tuple[int, int, int, int, int]]:
    return [(s.size_bytes, s.alloc, s.free, s.alloc_tick, s.free_tick) for s in trace.storages]


def test_ops_keep_their_order_name_phase_duration_source_and_workspace():
    events = Events()
    events.op()
    events.op(name=1, phase=1, source=1)
    events.op(phase=2, source=-1)
    mm, add, last = events.build().ops
    assert (mm.name, mm.phase, mm.source, mm.workspace_bytes) == ("aten::mm", Phase.FORWARD, SOURCES[0], 0)
    assert (add.name, add.phase, add.source, add.workspace_bytes) == ("aten::add_", Phase.BACKWARD, SOURCES[1], 64)
    assert (last.phase, last.source, last.duration_us) == (Phase.OPTIMIZER, "", 2.5)


def test_a_backward_op_has_the_line_of_its_forward_op():
    events = Events()
    events.op(phase=1, source=1, forward=0)
    assert events.build().ops[0].source == SOURCES[0]


def test_what_is_allocated_in_an_op_lives_from_that_op_on_and_is_written_by_it():
    events = Events()
    events.op()
    events.op(("alloc", 7, 100))
    events.op(("read", 7))
    trace = events.build()
    assert lifetimes(trace) == [(100, 1, 3, 0, 1)]
    assert [op.writes for op in trace.ops] == [(), (0,), ()]
    assert [op.reads for op in trace.ops] == [(), (), (0,)]
    assert trace.outlives(trace.storages[0]) and not trace.storages[0].born_before


def test_an_allocation_between_two_ops_counts_to_the_later_one():
    events = Events()
    events.op()
    events.alloc(7, 100)
    events.op(("read", 7))
    events.op()
    events.free(7, 100)
    events.op()
    assert lifetimes(events.build()) == [(100, 1, 3, 0, 1)]


def test_a_free_inside_an_op_leaves_the_storage_alive_for_that_op():
    events = Events()
    events.op(("alloc", 7, 100))
    events.op(("read", 7), ("free", 7, 100))
    events.op()
    assert lifetimes(events.build()) == [(100, 0, 2, 0, 1)]


def test_scratch_of_one_op_is_no_output():
    events = Events()
    events.op(("alloc", 7, 100), ("alloc", 8, 50), ("free", 7, 100))
    events.op(("read", 8))
    trace = events.build()
    assert lifetimes(trace) == [(100, 0, 1, 0, 2), (50, 0, 2, 1, 3)]
    assert trace.ops[0].writes == (1,)
    assert [s.category for s in trace.storages] == [Category.SCRATCH, Category.INPUT]


def test_ticks_are_counted_from_the_iterations_first():
    events = Events()
    events.alloc(1, 8)
    events.op(("alloc", 2, 16))
    events.op(("alloc", 3, 32))  # the iteration begins here
    events.op(("free", 2, 16))
    events.op(("alloc", 4, 64))  # and has ended here
    trace = events.build(1, 3)
    assert [op.first_tick for op in trace.ops] == [0, 1]
    assert trace.ticks == 2
    assert lifetimes(trace) == [
        (8, 0, 2, BEFORE_FIRST_TICK, 2),
        (16, 0, 2, BEFORE_FIRST_TICK, 1),
        (32, 0, 2, 0, 2),
    ]


def test_a_storage_of_before_the_recording_and_a_write_to_it():
    events = Events()
    events.before.append((5, 24, 0))
    events.op(("write", 5), name=1)
    trace = events.build()
    assert (trace.ops[0].reads, trace.ops[0].writes) == ((0,), (0,))  # in place: it reads what it writes
    assert trace.recurs(trace.storages[0]) and trace.storages[0].source == ""


def test_what_is_freed_before_the_iteration_is_not_in_it():
    events = Events()
    events.before.append((5, 24, 0))
    events.op(("read", 5))
    events.free(5, 24)
    events.op()
    assert events.build(1, 2).storages == ()


def test_accesses_outside_of_the_iteration_are_left_out():
    events = Events()
    events.before.append((5, 24, 0))
    events.op(("write", 5))
    events.op(("read", 5))
    events.op(("write", 5))
    (op,) = events.build(1, 2).ops
    assert (op.reads, op.writes) == ((0,), ())


def test_pinned_bytes_belong_to_no_storage():
    events = Events()
    events.before += [(5, 24, 1), (6, 40, 0)]
    events.op(("read", 5), ("read", 6))
    trace = events.build()
    assert trace.pinned_bytes == 24
    assert [s.size_bytes for s in trace.storages] == [40]
    assert trace.ops[0].reads == (0,)


def test_what_was_pinned_before_is_so_from_the_first_op_on_and_dies_as_any_other():
    events = Events()
    events.before += [(5, 24, 0), (6, 40, 0)]
    events.pins += [(5, 0, 0, 0, 0), (6, 0, 0, 0, -1)]
    events.op(("read", 5), ("read", 6))
    events.free(5, 24)
    events.op()
    trace = events.build()
    assert trace.pinned_bytes == 0 and trace.ops[0].reads == (0, 1)
    assert [(s.pinned_from, s.pinned_by, s.free) for s in trace.storages] == [(0, SOURCES[0], 1), (0, "", 2)]


def test_what_an_op_makes_and_frees_again_is_not_pinned():
    """Where it runs again it makes another."""
    events = Events()
    events.op(("alloc", 5, 24), ("alloc", 6, 24), ("pin", 5), ("pin", 6), ("free", 5, 24))
    events.op()
    assert [(s.pinned_from, s.free) for s in events.build().storages] == [(None, 1), (0, 2)]


def test_a_pin_is_from_the_op_in_which_it_was_or_the_next_one_on():
    events = Events()
    events.op(("alloc", 5, 24), ("alloc", 6, 24), ("alloc", 7, 24), ("pin", 6))
    events.pin(5)
    events.op()
    events.op(("pin", 7))
    events.pin(7)
    events.free(5, 24)
    events.op()
    assert [s.pinned_from for s in events.build().storages] == [1, 0, 2]
    assert [s.pinned_from for s in events.build(1, 3).storages] == [0, 0, 1]
    assert {s.pinned_by for s in events.build().storages} == {SOURCES[1]}
    assert [s.pinned_from for s in events.build(0, 1).storages] == [1, 0, None]


def test_no_op_before_the_iteration_can_have_what_is_pinned_leave():
    events = Events()
    events.op(("alloc", 5, 4096))
    events.op(("alloc", 6, 64))
    events.pin(5)
    events.op(("read", 6))
    events.op()
    assert [events.build(first=n).before.fixed_bytes for n in (2, 3)] == [0, 4096]
    events.pins.append((6, 0, 0, 0, -1))  # it was no storage's all along
    before = events.build(first=3).before
    assert (before.fixed_bytes, before.operand_bytes) == (4096 + 64, 0)


def test_a_recording_cut_to_its_last_ops_has_the_pins_of_what_is_left():
    events = Events()
    events.op(("alloc", 5, 24), ("alloc", 6, 24))
    events.pin(5)
    events.pin(6)
    events.free(6, 24)
    events.op(("alloc", 7, 24))
    events.op(("pin", 7))
    raw = recording(vars(events), NAMES, SOURCES)
    cut = CompressedRecording.of(raw.cut(1, 3, raw.ticks_of(1, 3))).recording()
    about = {"signature": "s", "torch_version": "2", "device": "cpu", "script": "", "iteration": 1, "alignment": 64,
             "before": None}  # fmt: skip
    assert build_trace(cut, 0, 2, Roles(), **about) == build_trace(raw, 1, 3, Roles(), **about)


def test_a_block_number_is_one_storage_however_often_it_is_accessed():
    events = Events()
    events.before.append((5, 24, 0))
    events.op(("read", 5), ("read", 5), ("write", 5))
    (op,) = events.build().ops
    assert (op.reads, op.writes) == ((0,), (0,))


def test_categories_by_what_the_optimizer_named_and_by_use():
    events = Events()
    events.before += [(1, 4, 0), (2, 4, 0), (3, 4, 0), (4, 4, 0), (5, 4, 0)]
    events.op(("read", 1), ("read", 4), ("alloc", 10, 4))  # parameter x batch -> activation
    events.op(("read", 4), ("alloc", 11, 4))  # batch -> batch
    events.op(("read", 10), ("write", 5))  # running statistics
    events.op(("read", 10), ("alloc", 12, 4), phase=1)
    events.op(("read", 12), ("read", 11), ("alloc", 13, 4), phase=2)
    events.op(("read", 13), phase=2)
    roles = Roles(parameters={1}, gradients={2}, optimizer_states={3})
    kinds = [s.category for s in events.build(roles=roles).storages]
    assert kinds[:5] == [
        Category.PARAMETER,
        Category.GRADIENT,
        Category.OPTIMIZER_STATE,
        Category.INPUT,
        Category.PARAMETER,
    ]
    assert kinds[5:] == [Category.ACTIVATION, Category.INPUT, Category.GRADIENT, Category.SCRATCH]


def test_in_forward_passes_what_is_older_and_no_module_names_is_no_parameter():
    events = Events()
    events.before += [(1, 4, 0), (2, 4, 0), (3, 4, 0)]
    events.op(("read", 1), ("read", 2), ("alloc", 10, 4))  # parameter x batch
    events.op(("read", 10), ("write", 3))  # a cache
    for roles, cache in ((Roles({1}), Category.PARAMETER), (Roles({1}, are_of_modules=True), Category.ACTIVATION)):
        kinds = [s.category for s in events.build(roles=roles).storages]
        assert kinds == [Category.PARAMETER, Category.INPUT, cache, Category.ACTIVATION]


def test_files_below_the_working_folder_are_named_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    raw = recording({}, [], [f"{tmp_path}/sub/train.py:3", "/elsewhere/train.py:3"])
    assert [raw.source(i) for i in (0, 1, -1)] == ["sub/train.py:3", "/elsewhere/train.py:3", ""]


def test_the_largest_need_before_the_iteration_is_kept_with_its_op_and_line():
    events = Events()
    events.before.append((1, 100, 0))
    events.op(("alloc", 2, 4096), source=0)  # workspace: 0 bytes in row 0
    events.op(("read", 1), ("read", 2), ("alloc", 3, 64), name=1, source=1)
    events.free(2, 4096)
    events.op(("read", 1))
    before = events.build(first=2).before
    assert (before.name, before.source) == ("aten::add_", SOURCES[1])
    assert (before.operand_bytes, before.workspace_bytes, before.fixed_bytes) == (128 + 4096, 64, 0)


def test_nothing_before_the_iteration_needs_nothing():
    events = Events()
    events.op(("alloc", 2, 4096))
    assert events.build().before is None


def test_what_was_made_outside_any_op_counts_until_an_op_has_used_it():
    events = Events()
    events.before.append((9, 24, 1))  # pinned
    events.alloc(1, 1000)
    events.op(("alloc", 2, 10_000))
    events.op(("read", 1), ("read", 2), ("alloc", 3, 64))
    events.op(("read", 3), ("alloc", 4, 128))
    assert [events.build(first=n).before.fixed_bytes for n in (1, 2)] == [1024 + 64, 64]


def test_a_workspace_is_not_that_of_a_larger_op_of_the_same_name():
    events = Events()
    for _ in range(9):
        events.op()
    events.op(("alloc", 2, 100))  # of its name and operands another needed 9 x 64 bytes
    events.op(("alloc", 3, 100), ("free", 3, 100))
    assert [op.workspace_bytes for op in events.build().ops[9:]] == [128, 640]


def test_handovers_are_those_of_the_iteration_to_storages_that_outlive_their_op():
    events = Events()
    events.op(("alloc", 1, 64))
    events.op(("read", 1), ("alloc", 2, 64))
    events.op(("read", 2), ("alloc", 3, 64), ("free", 3, 64), ("alloc", 4, 64))
    events.op(("read", 4))
    events.handovers = [(1, 1, 2), (2, 2, 3), (2, 2, 4), (2, 1, 4), (2, 9, 4)]  # one to what is freed, two of no inputs
    assert events.build().handovers == (Handover(1, 0, 1), Handover(2, 1, 3))
    assert events.build(2, 4).handovers == (Handover(0, 1, 3),)
