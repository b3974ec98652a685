from hypothesis import example, given

from memfit.planning.autoswap import smallest_budget
from memfit.planning.floor import Cause, floor_of
from trace_builder import TraceBuilder, traces


def one_that_another_takes_over_from():
    """A storage that the iteration makes and leaves behind, and what the one before left, freed in the first op."""
    builder = TraceBuilder()
    left, kept = builder.before(1), builder.before(1)
    builder.op(outputs=[1])
    builder.free(left)
    builder.free(kept)
    builder.op(outputs=[1])
    builder.op()
    return builder.build()


@example(one_that_another_takes_over_from())
@given(traces(max_ops=10))
def test_the_storages_make_up_the_smallest_budget_to_the_last_byte(trace):
    floor = floor_of(trace)
    assert (floor.budget_bytes, floor.op) == smallest_budget(trace)
    assert sum(need.held_bytes for need in floor.needs) + floor.pinned_bytes == floor.budget_bytes
    assert [need.held_bytes for need in floor.needs] == sorted((n.held_bytes for n in floor.needs), reverse=True)


def test_each_storage_says_why_it_is_there():
    builder = TraceBuilder(alignment=8, pinned_bytes=16)
    used, away, never = builder.before(100), builder.before(999), builder.before(7)
    (done,) = builder.op(reads=[used, away], outputs=[24])
    builder.op(reads=[done, used])
    later = builder.alloc(33)
    (made,) = builder.op(reads=[used], outputs=[2000], scratch=[50])
    builder.op(reads=[made])
    builder.free(made)
    builder.op(reads=[used, away, later])
    floor = floor_of(builder.build())
    scratch = made + 1
    assert floor.op == 2 and floor.pinned_bytes == 16
    assert {need.storage: (need.held_bytes, need.cause) for need in floor.needs} == {
        made: (2000, Cause.MADE),
        used: (104, Cause.USED),
        scratch: (56, Cause.MADE),
        later: (40, Cause.NOT_YET),
        done: (24, Cause.NO_MORE),
        never: (8, Cause.NEVER),
    }
