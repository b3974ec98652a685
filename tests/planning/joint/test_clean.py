from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.clean import copied_before
from memfit.planning.joint.stretches import idle_gaps
from trace_builder import TraceBuilder


def used_at(reads, writes, count=12):
    """A weight that these ops read or write."""
    builder = TraceBuilder()
    weight = builder.before(64)
    for op in range(count):
        builder.op(reads=[weight] * (op in reads), writes=[weight] * (op in writes))
    trace = builder.build()
    idle = idle_gaps(trace, candidates(trace, ANY_GAP))
    found = copied_before(trace, idle)
    return {idle[n].gap.after: sorted(idle[each].gap.after for each in earlier) for n, earlier in found.items()}


def test_a_copy_is_clean_until_the_next_write_and_over_the_end_of_the_iteration():
    assert used_at(reads=[1, 5], writes=[9]) == {1: [9], 5: [1, 9], 9: []}


def test_what_nothing_writes_is_always_clean():
    assert used_at(reads=[1, 5], writes=[]) == {1: [1, 5], 5: [1, 5]}


def test_what_ends_with_the_iteration_has_no_copy_from_the_one_before():
    builder = TraceBuilder()
    (x,) = builder.op(outputs=[64])
    for op in range(1, 8):
        builder.op(reads=[x] * (op in (2, 4, 6)))
    builder.free(x)
    trace = builder.build()
    idle = idle_gaps(trace, candidates(trace, ANY_GAP))
    found = {idle[n].gap.after: len(earlier) for n, earlier in copied_before(trace, idle).items()}
    assert found == {0: 0, 2: 1, 4: 2, 6: 3}  # the last until it is freed
