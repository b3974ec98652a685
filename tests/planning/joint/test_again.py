import pytest

from memfit.ir import Category, Op, Phase
from memfit.planning.joint.again import base_name, corrected, may_run_again, updates_statistics
from trace_builder import TraceBuilder


def op(name, reads=(0,)):
    return Op(name, Phase.FORWARD, 1.0, "", tuple(reads), (1,), 0, 0)


@pytest.mark.parametrize(
    "name",
    ["aten::conv2d", "aten::relu_", "aten::dropout", "aten::add.Tensor", "aten::_fused_rms_norm", "aten::bernoulli_"],
)
def test_functions_of_their_inputs_may_run_again(name):
    assert may_run_again(op(name))


@pytest.mark.parametrize(
    "name",
    ["aten::_foreach_add_.List", "aten::_fused_adamw_", "mylib::conv", "c10d::allreduce_", "aten::set_",
     "aten::resize_", "aten::item", "aten::copy_", "aten::rrelu", "aten::lstm.input"],
)  # fmt: skip
def test_ops_with_effects_or_unknown_ones_may_not(name):
    assert not may_run_again(op(name))


def test_what_reads_nothing_is_a_factory_or_reads_what_nobody_saw():
    assert may_run_again(op("aten::randn", reads=())) and may_run_again(op("aten::ones_like", reads=()))
    assert not may_run_again(op("aten::to.device", reads=())) and not may_run_again(op("aten::empty", reads=()))


def test_names_lose_their_namespace_and_overload():
    assert base_name(op("aten::add_.Tensor")) == "add_"
    assert updates_statistics(op("aten::batch_norm")) and not updates_statistics(op("aten::layer_norm"))


def norm_trace(*, coarse):
    builder = TraceBuilder()
    weight, mean = builder.before(4), builder.before(4)
    (x,) = builder.op("aten::conv2d", reads=[weight], outputs=[64])
    arguments = (x, weight, mean)
    builder.op("aten::batch_norm", reads=arguments, writes=arguments if coarse else (mean,), outputs=[64])
    builder.op("aten::native_batch_norm_backward", reads=arguments, phase=Phase.BACKWARD)
    builder.op("aten::add_", reads=[weight], writes=[weight], category=Category.PARAMETER)
    return builder.build()


def test_a_batch_norm_writes_its_outputs_and_statistics_only():
    assert corrected(norm_trace(coarse=True)) == norm_trace(coarse=False)


def test_a_right_trace_is_returned_as_it_is():
    trace = norm_trace(coarse=False)
    assert corrected(trace) is trace
