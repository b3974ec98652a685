from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from memfit.comparing.compression.draft import Draft, Piece
from memfit.files import load_trace, save_trace
from memfit.ir import Category, Phase
from memfit.planning.lifetimes import peak_live
from trace_builder import TraceBuilder, traces


def rebuilt(trace):
    return replace(Draft(trace).build("x"), signature=trace.signature, before=trace.before)


def small():
    """A weight, read by two ops with a result each; the first result is freed behind the second op."""
    builder = TraceBuilder(alignment=8)
    weight = builder.before(80)
    (first,) = builder.op("aten::linear", reads=[weight], outputs=[40], scratch=[16])
    (second,) = builder.op("aten::linear", reads=[weight, first], outputs=[24])
    builder.free(first)
    builder.op("aten::sum", reads=[second], phase=Phase.BACKWARD)
    return builder.build()


@given(traces(max_ops=14, other_ticks=False))
def test_a_draft_that_nobody_changes_is_the_trace(trace):
    assert rebuilt(trace) == trace


@given(trace=traces(max_ops=10), data=st.data())
def test_a_changed_draft_is_a_whole_trace(trace, data, tmp_path_factory):
    draft = Draft(trace)
    for piece in list(draft.pieces):
        action = data.draw(st.sampled_from(["keep", "drop", "shrink", "divide", "free early"]))
        if action == "drop":
            draft.drop([piece])
        elif action == "shrink":
            piece.size_bytes //= 2
        elif action == "divide":
            draft.divide(piece, [piece.size_bytes // 3, piece.size_bytes])
        elif action == "free early":
            draft.free_after_last_use(piece)
    draft.insert(draft.steps[0], "aten::zeros", [], [Piece(8, Category.SCRATCH)])
    path = tmp_path_factory.mktemp("draft") / "t.json"
    made = draft.build("changed")
    save_trace(made, path)
    assert load_trace(path) == made  # it is checked in full


def test_a_smaller_storage_makes_its_op_need_less():
    draft = Draft(small())
    draft.pieces[1].size_bytes = 8
    made = draft.build("x")
    assert made.ops[0].workspace_bytes == 24 and made.ops[0].duration_us == (80 + 8) / (80 + 40)


def test_scratch_is_there_while_its_op_runs():
    draft = Draft(small())
    draft.scratch(draft.steps[1], 100)
    made = draft.build("x")
    assert peak_live(made, aligned=True) == (80 + 40 + 24 + 104, 1)
    assert made.ops[1].workspace_bytes == 24 + 104


def test_an_op_behind_another_makes_its_result_in_its_place():
    draft = Draft(small())
    weight, first = draft.pieces[:2]
    raw = Piece(40, Category.ACTIVATION)
    added = draft.insert(draft.steps[0], "aten::add.Tensor", [raw], frees=[raw], after=True)
    draft.pieces.append(raw)
    draft.make_in(first, added)
    draft.make_in(raw, draft.steps[0])
    made = draft.build("x")
    assert [op.name for op in made.ops] == ["aten::linear", "aten::add.Tensor", "aten::linear", "aten::sum"]
    assert made.storages[1].alloc == 1 and made.ops[0].writes == (len(made.storages) - 1,)
    assert peak_live(made, aligned=True) == (80 + 40 + 40, 1)


def test_what_a_removed_op_frees_is_freed_all_the_same():
    draft = Draft(small())
    draft.remove([draft.steps[1]])
    made = draft.build("x")
    assert made.storages[1].free == 1 and len(made.ops) == 2


def test_a_twin_lives_and_is_accessed_as_its_piece_is():
    draft = Draft(small())
    draft.beside(draft.pieces[1], 16)
    made = draft.build("x")
    one, twin = made.storages[1], made.storages[-1]
    assert (twin.alloc, twin.free, twin.size_bytes) == (one.alloc, one.free, 16)
    assert {1, 4} <= set(made.ops[0].writes) and {1, 4} <= set(made.ops[1].reads)
