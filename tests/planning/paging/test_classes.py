"""The classes of ops, and what they are said to touch."""

from __future__ import annotations

import pytest

from memfit.planning.lifetimes import births
from memfit.planning.paging import AccessClass, Touch, access_class
from memfit.planning.paging.classes import scratch, touches
from trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::add.Tensor", AccessClass.STREAM),
        ("aten::add_.Tensor", AccessClass.STREAM),
        ("aten::gelu_backward", AccessClass.STREAM),
        ("aten::_log_softmax_backward_data", AccessClass.STREAM),
        ("aten::__and__.Tensor", AccessClass.STREAM),
        ("aten::_foreach_addcmul_.Scalar", AccessClass.STREAM),
        ("aten::_fused_adamw_", AccessClass.STREAM),
        ("aten::embedding", AccessClass.ROWS),
        ("aten::index_add_", AccessClass.ROWS),
        ("aten::mm", AccessClass.SWEEPS),
        ("aten::convolution_backward", AccessClass.SWEEPS),
        ("aten::sum.dim_IntList", AccessClass.SWEEPS),
        ("aten::native_batch_norm", AccessClass.SWEEPS),
        ("mine::unheard_of", AccessClass.SWEEPS),
    ],
)
def test_an_op_has_a_class_by_its_name(name, expected):
    assert access_class(name) is expected


def touched(name, reads=(), writes=(), outputs=(), scratch_sizes=()):
    builder = TraceBuilder()
    read = [builder.before(size) for size in reads]
    written = [builder.before(size) for size in writes]
    builder.op(name, reads=[*read, *written], writes=written, outputs=outputs, scratch=scratch_sizes)
    trace = builder.build()
    return touches(trace, 0, births(trace)), scratch(trace)


def test_a_stream_goes_over_each_operand_once_and_writes_what_it_writes():
    found, _ = touched("aten::add_", reads=[10], writes=[20])
    assert found == [Touch(0, False), Touch(1, True)]


def test_a_product_sweeps_as_often_as_the_machine_says_and_a_convolution_twice():
    assert [touch.sweeps for touch in touched("aten::mm", reads=[10, 20], outputs=[5])[0]] == [None] * 3
    assert [touch.sweeps for touch in touched("aten::conv2d", reads=[10, 20], outputs=[5])[0]] == [2] * 3


def test_an_embedding_draws_a_row_for_each_index():
    found, _ = touched("aten::embedding", reads=[4096, 8 * 16], outputs=[16 * 64])
    assert found == [Touch(1, False), Touch(2, True), Touch(0, False, 1, 16, 64)]


def test_the_gradient_of_an_embedding_is_filled_before_rows_are_added():
    found, _ = touched("aten::embedding_dense_backward", reads=[16 * 64, 8 * 16], outputs=[4096])
    assert found == [Touch(0, False), Touch(1, False), Touch(2, True), Touch(2, True, 1, 16, 64)]
    found, _ = touched("aten::index_add_", reads=[16 * 64, 8 * 16], writes=[4096])
    assert found == [Touch(0, False), Touch(1, False), Touch(2, True, 1, 16, 64)]


def test_what_is_no_table_with_indices_is_taken_to_sweep():
    for reads, outputs in (([4096], [64]), ([4096, 4], [64]), ([32, 8 * 16], [64000])):
        found, _ = touched("aten::index_select", reads=reads, outputs=outputs)
        assert {touch.sweeps for touch in found} == {None} and not any(touch.draws for touch in found)


def test_scratch_is_that_of_the_op_and_storages_without_bytes_are_not_touched():
    found, own = touched("aten::sin", reads=[0, 8], outputs=[8], scratch_sizes=[16, 0])
    assert [touch.storage for touch in found] == [1, 2]
    assert own == {0: [3]}
