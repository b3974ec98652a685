import pytest
from hypothesis import given

from memfit.ir import Phase
from memfit.planning.autoswap.candidates import ANY_GAP, candidates
from memfit.planning.joint.again import Rule, corrected
from memfit.planning.joint.recipes import MOST_OPS, remaking_us
from memfit.planning.joint.refusals import Loss, Refusal, refusal
from memfit.planning.joint.values import Values
from trace_builder import TraceBuilder, traces


@given(traces(max_ops=14))
def test_a_reason_is_given_where_there_is_no_recipe_and_only_there(trace):
    values = Values.of(corrected(trace))
    for gap in candidates(values.trace, ANY_GAP):
        assert (refusal(values, gap) is None) == (remaking_us(values, gap) is not None)


def refused(name="aten::mm", *, reads_weight=True, also=False):
    """The refusal of a storage that op 0 made."""
    builder = TraceBuilder()
    weight, other = builder.before(8), builder.alloc(4)
    writes = [other] if also else []
    (made,) = builder.op(name, reads=[weight] if reads_weight else [], writes=writes, outputs=[64])
    builder.op("aten::mm", reads=[weight])
    builder.op("aten::mm", reads=[made])
    return refusal_of(builder, made)


def refusal_of(builder, storage):
    values = Values.of(builder.build())
    (gap,) = [gap for gap in candidates(values.trace, ANY_GAP) if gap.storage == storage]
    return refusal(values, gap)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("mylib::conv", Rule.NOT_ATEN),
        ("aten::_fused_adamw_", Rule.OPTIMIZER),
        ("aten::resize_", Rule.PYTHON),
        ("aten::copy_", Rule.UNSEEN),
        ("aten::lstm.input", Rule.UNSAID),
    ],
)
def test_the_op_and_its_rule_are_named(name, rule):
    assert refused(name) == Refusal(rule, 0, 2)


def test_what_reads_nothing_recorded_is_named():
    assert refused("aten::to.device", reads_weight=False) == Refusal(Rule.NO_INPUT, 0, 2)
    assert refused("aten::randn", reads_weight=False) is None


def test_an_op_that_writes_another_storage_too_is_named():
    assert refused(also=True) == Refusal(Loss.SECOND, 0, 2)


def test_what_writes_a_weight_does_not_run_again_for_it():
    builder = TraceBuilder()
    weight = builder.before(64)
    builder.op("aten::add_", reads=[weight], writes=[weight])
    builder.op("aten::ones", outputs=[1])
    builder.op("aten::mm", reads=[weight])
    assert refusal_of(builder, weight) == Refusal(Loss.OUTLIVES, 0, weight)


def test_a_value_of_before_the_iteration_is_lost():
    builder = TraceBuilder()
    data = builder.before(64)
    for used in ([data], [], [data]):
        builder.op("aten::mm", reads=used)
    builder.free(data)
    assert refusal_of(builder, data) == Refusal(Loss.BEFORE, None, data)


def test_an_input_that_is_gone_is_the_reason_and_not_the_storage_itself():
    builder = TraceBuilder()
    data = builder.before(4)
    (made,) = builder.op("aten::mm", reads=[data], outputs=[64])
    builder.free(data)
    builder.op("aten::ones", outputs=[1])
    builder.op("aten::mm", reads=[made])
    assert refusal_of(builder, made) == Refusal(Loss.BEFORE, None, data)


def test_a_weight_is_not_made_again_over_the_end():
    builder = TraceBuilder()
    weight = builder.before(64)
    for used in ([weight], [], []):
        builder.op("aten::mm", reads=used)
    assert refusal_of(builder, weight) == Refusal(Loss.CYCLIC)


def test_a_recipe_that_is_too_long_is_refused_as_such():
    builder = TraceBuilder()
    (made,) = builder.op("aten::ones", outputs=[4])
    for _ in range(MOST_OPS):
        (following,) = builder.op("aten::mm", reads=[made], outputs=[4])
        builder.free(made)
        made = following
    builder.op("aten::ones", outputs=[1])
    builder.op("aten::mm", reads=[made], phase=Phase.BACKWARD)
    assert refusal_of(builder, made) == Refusal(Loss.TOO_LONG)
