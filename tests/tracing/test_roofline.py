"""Predicted durations: operations counted by hand, bytes, and which of the two decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memfit.errors import InputError
from memfit.shapes import Shapes, Tensor, parse_shapes
from memfit.tracing.roofline import ACCELERATORS, Accelerator, accelerator_named, flops

PLAIN = Accelerator("plain", {"float32": 1e12, "float16": 4e12, "tfloat32": 2e12}, 1e9, launch_us=5,
                    flops_efficiency=1, bandwidth_efficiency=1)  # fmt: skip


def test_shapes_are_read_as_the_recorder_writes_them():
    shapes = parse_shapes("Float[2,3];-;Long[]>BFloat16[4]")
    assert shapes == Shapes((Tensor("Float", (2, 3)), None, Tensor("Long", ())), (Tensor("BFloat16", (4,)),))
    assert shapes.size_bytes == 24 + 8 + 8
    assert parse_shapes("") == Shapes()


@pytest.mark.parametrize(
    ("op", "shapes", "count"),
    [
        ("aten::mm", "Float[2,3];Float[3,5]>Float[2,5]", 2 * 2 * 3 * 5),
        ("aten::addmm", "Float[5];Float[2,3];Float[3,5]>Float[2,5]", 2 * 2 * 3 * 5),
        ("aten::bmm", "Float[7,2,3];Float[7,3,5]>Float[7,2,5]", 2 * 7 * 2 * 3 * 5),
        ("aten::baddbmm", "Float[7,2,5];Float[7,2,3];Float[7,3,5]>Float[7,2,5]", 2 * 7 * 2 * 3 * 5),
        ("aten::linear", "Float[7,2,3];Float[5,3];Float[5]>Float[7,2,5]", 2 * 7 * 2 * 3 * 5),
        ("aten::matmul", "Float[7,2,3];Float[3,5]>Float[7,2,5]", 2 * 7 * 2 * 3 * 5),
        ("aten::conv2d", "Float[2,3,8,8];Float[4,3,3,3];Float[4]>Float[2,4,4,4]", 2 * 2 * 16 * 4 * 3 * 9),
        ("aten::conv2d.padding", "Float[2,6,8,8];Float[4,2,3,3]>Float[2,4,8,8]", 2 * 2 * 64 * 4 * 2 * 9),
        ("aten::conv1d", "Float[2,3,8];Float[4,3,3]>Float[2,4,8]", 2 * 2 * 8 * 4 * 3 * 3),
        ("aten::conv_transpose2d.input", "Float[2,3,4,4];Float[3,5,2,2]>Float[2,5,8,8]", 2 * 2 * 16 * 3 * 5 * 4),
        (
            "aten::convolution_backward",
            "Float[2,4,4,4];Float[2,3,8,8];Float[4,3,3,3]>Float[2,3,8,8];Float[4,3,3,3];Float[4]",
            2 * 2 * 2 * 16 * 4 * 3 * 9,
        ),
        (
            "aten::convolution_backward",
            "Float[2,4,4,4];Float[2,3,8,8];Float[4,3,3,3]>-;Float[4,3,3,3];-",
            2 * 2 * 16 * 4 * 3 * 9,
        ),
        ("aten::scaled_dot_product_attention", "Half[2,3,5,8];Half[2,3,7,8];Half[2,3,7,9]>Half[2,3,5,9]",
         2 * 2 * 3 * 5 * 7 * (8 + 9)),
        ("aten::_scaled_dot_product_flash_attention_backward",
         "Half[2,3,5,8];Half[2,3,5,8];Half[2,3,7,8];Half[2,3,7,8];Half[2,3,5,8];Float[2,3,5]>Half[2,3,5,8]",
         2 * 2 * 3 * 5 * 7 * 5 * 8),
        ("aten::relu", "Float[2,3]>Float[2,3]", 0),
        ("aten::mm", "", 0),
    ],
)  # fmt: skip
def test_operations_are_counted(op, shapes, count):
    assert flops(op, parse_shapes(shapes)) == count


def test_a_large_product_is_bound_by_arithmetic_and_a_large_sum_by_memory():
    shapes = parse_shapes("Float[1000,1000];Float[1000,1000]>Float[1000,1000]")
    assert replace(PLAIN, bytes_per_second=1e12).duration_us("aten::mm", shapes, 8_000_000, 4_000_000) == 2000
    assert PLAIN.duration_us("aten::add.Tensor", shapes, 8_000_000, 4_000_000) == 12_000


def test_efficiencies_lengthen_and_small_ops_take_a_launch():
    half = replace(PLAIN, bandwidth_efficiency=0.5)
    assert half.duration_us("aten::relu", Shapes(), 500_000, 500_000) == 2000
    assert PLAIN.duration_us("aten::relu", Shapes(), 4, 4) == 5


def test_an_op_that_touches_no_bytes_takes_no_time():
    assert PLAIN.duration_us("aten::view", parse_shapes("Float[1000,1000]>Float[1000000]"), 0, 0) == 0
    assert PLAIN.duration_us("aten::empty.memory_format", parse_shapes(">Float[1000]"), 0, 4000) == 0


def test_a_part_of_a_storage_costs_a_part():
    assert PLAIN.duration_us("aten::relu", parse_shapes("Float[5000]>Float[5000]"), 10**9, 10**9) == 40


def test_the_dtype_and_the_switches_choose_the_rate():
    fast = replace(PLAIN, bytes_per_second=1e15)
    product = "{0}[1000,1000];{0}[1000,1000]>{0}[1000,1000]"
    single, half = (parse_shapes(product.format(dtype)) for dtype in ("Float", "Half"))
    assert fast.duration_us("aten::mm", single, 1, 1) == 2000
    assert fast.duration_us("aten::mm", half, 1, 1) == 500
    assert replace(fast, tf32_products=True).duration_us("aten::mm", single, 1, 1) == 1000
    image = parse_shapes("Float[1,1000,1,1000];Float[1000,1000,1,1]>Float[1,1000,1,1000]")
    assert fast.duration_us("aten::conv2d", image, 1, 1) == 1000
    assert replace(fast, tf32_convolutions=False).duration_us("aten::conv2d", image, 1, 1) == 2000


def test_profiles_are_found_by_name():
    assert accelerator_named("H100") is ACCELERATORS["h100"]
    with pytest.raises(InputError, match="abacus"):
        accelerator_named("abacus")


@pytest.mark.parametrize("profile", ACCELERATORS.values(), ids=list(ACCELERATORS))
def test_profiles_are_in_plain_units(profile):
    assert 1e13 < profile.flops["float32"] < 1e14 < profile.flops["float16"] < 1e15
    assert 5e11 < profile.bytes_per_second < 1e13
