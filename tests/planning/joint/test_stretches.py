from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.stretches import idle_gaps
from memfit.planning.joint.values import Values
from trace_builder import TraceBuilder


def two_layers():
    """x -> y, z -> loss; backward reads y, z, then x: each may be made from the one before."""
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    y, z = builder.op("aten::max_pool2d", reads=[x], outputs=[64, 32])
    builder.op("aten::sum", reads=[z])
    builder.op("aten::backward", outputs=[4])
    builder.op("aten::backward", reads=[y])
    builder.op("aten::backward", reads=[z])
    builder.op("aten::backward", reads=[x])
    builder.op("aten::add_", reads=[weight], writes=[weight])
    return builder.build(), (weight, x, y, z)


def cuts(depth=2):
    trace, names = two_layers()
    found = candidates(trace, ANY_GAP)
    idle = idle_gaps(trace, found, Values.of(trace), depth)
    return {names.index(each.gap.storage): (number, each.cuts) for number, each in enumerate(idle)}


def test_a_gap_is_cut_where_another_remaking_reads_its_storage():
    found = cuts()
    x, cuts_x = found[1]
    assert [cut.op for cut in cuts_x] == [4, 5, 6]
    (_, (own,)) = found[2]
    assert own.op == 4 and own.recipe.ops == (1,) and own.needs == (x,)
    assert cuts_x[0].recipe.ops == (0,) and cuts_x[0].needs == (found[0][0],)


def test_the_second_output_may_return_with_the_first():
    _, cuts_z = cuts()[3]
    assert [cut.op for cut in cuts_z] == [4, 5]
    assert cuts_z[0].recipe.ops == (1,)


def test_beyond_the_depth_inputs_count_as_being_there():
    found = cuts(depth=0)
    assert [cut.op for cut in found[1][1] if cut.since is None] == [6] and found[2][1][0].needs == ()


def test_one_cut_stands_for_all_ops_at_which_a_storage_may_return_unfollowed():
    (loose, own) = cuts(depth=0)[1][1]  # x may return before op 4, where y is made from it, and before op 5, for z
    assert (loose.since, loose.op, loose.recipe.ops, loose.needs) == (4, 5, (0,), ())
    assert (own.since, own.op) == (None, 6)
    assert all(cut.since is None for _, each in cuts(depth=2).values() for cut in each)


def test_at_a_loose_cut_runs_what_runs_at_the_first_of_its_ops():
    builder = TraceBuilder()
    (x,) = builder.op("aten::mm", reads=[builder.before(8)], outputs=[64])
    (y,) = builder.op("aten::relu", reads=[x], outputs=[64])
    first, second = (builder.op("aten::relu", reads=[y], outputs=[64])[0] for _ in range(2))
    builder.op("aten::backward", outputs=[4])
    builder.op("aten::backward", reads=[first])
    builder.free(x)
    builder.op("aten::backward", reads=[second])
    builder.op("aten::backward", reads=[y])
    trace = builder.build()
    idle = {each.gap.storage: each for each in idle_gaps(trace, candidates(trace, ANY_GAP), Values.of(trace), 0)}
    found = [(cut.since, cut.op, cut.recipe and cut.recipe.ops) for cut in idle[y].cuts]
    assert found == [(5, 6, (1,)), (None, 7, (0, 1))]


def test_without_values_no_gap_is_cut():
    trace, _ = two_layers()
    found = candidates(trace, ANY_GAP)
    assert all(len(each.cuts) == 1 and each.cuts[0].op == each.end for each in idle_gaps(trace, found))


def test_a_cyclic_gap_is_cut_in_the_order_in_which_it_passes():
    builder = TraceBuilder()
    weight = builder.before(8)
    builder.op("aten::relu", outputs=[4])
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    builder.op("aten::sum", outputs=[4])
    builder.op("aten::sum", reads=[x])
    trace = builder.build()
    found = candidates(trace, ANY_GAP)
    idle = {each.gap.storage: each for each in idle_gaps(trace, found, Values.of(trace))}
    assert [cut.op for cut in idle[weight].cuts] == [3, 5]
