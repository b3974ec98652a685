from memfit.planning.joint.recipes import recipe_of
from memfit.planning.joint.values import Values
from trace_builder import TraceBuilder


def chain(length=2, duration_us=3.0):
    """x -> relu_(x) -> a row of temporaries, freed at once -> y; y is used at the end."""
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64], duration_us=duration_us)
    builder.op("aten::relu_", reads=[x], writes=[x], duration_us=1.0)
    last = x
    for _ in range(length):
        (made,) = builder.op("aten::mul", reads=[last], outputs=[64], duration_us=2.0)
        if last != x:
            builder.free(last)
        last = made
    builder.op("aten::sum", reads=[x])
    builder.op("aten::sum", reads=[last])
    trace = builder.build()
    return trace, Values.of(trace), weight, x, last


def test_dead_inputs_are_made_again_too_and_living_ones_are_needed():
    trace, values, _, x, y = chain()
    recipe = recipe_of(values, values.before(y, 5), 5)
    assert recipe.ops == (2, 3) and recipe.us == 4.0
    assert recipe.needs == (values.before(x, 5),)


def test_a_value_changed_in_place_is_made_by_all_writers():
    _, values, weight, x, _ = chain()
    recipe = recipe_of(values, values.before(x, 4), 4)
    assert recipe.ops == (0, 1) and recipe.needs == (values.before(weight, 4),)


def test_a_recipe_may_be_too_long_or_impossible():
    _, values, weight, _, y = chain(length=4)
    at = len(values.trace.ops) - 1
    assert recipe_of(values, values.before(y, at), at, most_ops=3) is None
    assert recipe_of(values, values.before(weight, at), at) is None


def test_an_input_that_was_overwritten_for_good_is_lost():
    builder = TraceBuilder()
    weight = builder.before(8)
    (x,) = builder.op("aten::mm", reads=[weight], outputs=[64])
    builder.op("aten::add_", reads=[weight], writes=[weight])
    builder.op("aten::sum", reads=[x])
    values = Values.of(builder.build())
    assert recipe_of(values, values.before(x, 1), 1) is not None
    assert recipe_of(values, values.before(x, 2), 2) is None


def test_an_op_needs_room_for_what_it_allocates_and_for_inputs_made_on_the_way():
    _, values, _, x, y = chain()
    assert recipe_of(values, values.before(y, 5), 5).room_bytes == (64, 128)
    assert recipe_of(values, values.before(x, 4), 4).room_bytes == (64, 64)
