from hypothesis import given

from memfit.planning.joint.values import Values
from trace_builder import TraceBuilder, traces


def made_in_place():
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    builder.op("aten::relu_", reads=[x], writes=[x])
    (y,) = builder.op("aten::mul", reads=[x], outputs=[64])
    builder.free(x)
    builder.op("aten::add_", reads=[weight, y], writes=[weight])
    return builder.build(), weight, x, y


def test_each_write_makes_a_value_from_those_read():
    trace, weight, x, y = made_in_place()
    values = Values.of(trace)
    before, made, changed = values.of_storage[x]
    assert [values.values[v].writer for v in (before, made, changed)] == [None, 0, 1]
    assert values.values[made].reads == (values.of_storage[weight][0],)
    assert values.values[changed].reads == (made,)
    assert values.values[values.of_storage[y][1]].reads == (changed,)


def test_a_value_is_there_from_its_writer_to_the_next_or_to_the_storages_end():
    trace, weight, x, _ = made_in_place()
    values = Values.of(trace)
    _, made, changed = values.of_storage[x]
    assert [values.is_there(made, op) for op in range(4)] == [False, True, False, False]
    assert [values.is_there(changed, op) for op in range(4)] == [False, False, True, False]
    assert [values.is_there(values.of_storage[weight][0], op) for op in range(4)] == [True] * 4
    assert values.before(x, 1) == made and values.before(x, 2) == changed


def test_what_changes_the_model_or_a_second_storage_may_not_run_again():
    trace, weight, x, _ = made_in_place()
    values = Values.of(trace)
    assert values.values[values.of_storage[x][2]].remakable
    assert not values.values[values.of_storage[weight][1]].remakable
    builder = TraceBuilder()
    (a,) = builder.op("aten::mm", reads=[builder.before(4)], outputs=[4])
    (b,) = builder.op("aten::add_", reads=[a], writes=[a], outputs=[4])
    values = Values.of(builder.build())
    assert not values.values[values.of_storage[b][1]].remakable


def test_a_norm_may_run_again_without_its_statistics():
    builder = TraceBuilder()
    mean, x = builder.before(4), builder.before(64)
    (y,) = builder.op("aten::batch_norm", reads=[x, mean], writes=[mean], outputs=[64])
    values = Values.of(builder.build())
    made = values.values[values.of_storage[y][1]]
    assert made.remakable and made.reads == (values.of_storage[x][0],)


@given(traces())
def test_values_of_a_storage_follow_one_another(trace):
    values = Values.of(trace)
    for storage, numbers in enumerate(values.of_storage):
        writers = [values.values[v].writer for v in numbers]
        assert writers == [None, *(i for i, op in enumerate(trace.ops) if storage in op.writes)]
        assert [values.values[v].version for v in numbers] == list(range(len(numbers)))
    for op in range(len(trace.ops)):
        assert {values.values[v].writer for v in values.written_by(op)} <= {op}
