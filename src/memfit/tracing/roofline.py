"""The duration of an op on an accelerator, from data sheets: the larger of arithmetic and memory traffic.

The model knows matrix products, convolutions and attention; it takes every other op as bound by memory. The duration
is an estimate for one kernel an op, without overlap of kernels, caches or fusion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memfit.errors import InputError
from memfit.shapes import Shapes, Tensor

_DTYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}

# The operand whose last dimension is summed over.
_PRODUCTS = {"mm": 0, "bmm": 0, "linear": 0, "matmul": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
_CONVOLUTION = re.compile(r"_?(conv(olution)?([123]d|_transpose[123]d)?|(cudnn|miopen|mkldnn)_convolution(_\w+)?)$")
_ATTENTION = re.compile(r"_?scaled_dot_product(_\w+)?_attention(_for_cpu|_overrideable)?(_backward)?$")
# They touch no byte of what they return.
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "resize_"}


@dataclass(frozen=True)
class Accelerator:
    """A GPU as its data sheet describes it.

    Attributes:
        name: Its name.
        flops: Dense peak operations per second by dtype, with "tfloat32" for float32 on tensor cores where it has them.
        bytes_per_second: The peak bandwidth of its memory.
        launch_us: Microseconds; no op that runs a kernel takes less.
        flops_efficiency: The part of the peak that real kernels reach; 0.6 is a round figure for large kernels.
        bandwidth_efficiency: The part of the bandwidth that real kernels reach; 0.8 is a round figure too.
        tf32_products: Whether float32 matrix products run on tensor cores; the default is torch's.
        tf32_convolutions: The same for convolutions.
    """

    name: str
    flops: Mapping[str, float]
    bytes_per_second: float
    launch_us: float = 4.0
    flops_efficiency: float = 0.6
    bandwidth_efficiency: float = 0.8
    tf32_products: bool = False
    tf32_convolutions: bool = True

    def duration_us(self, op: str, shapes: Shapes, read_bytes: int, written_bytes: int) -> float:
        """Return the duration of `op`, which reads and writes storages of so many bytes; 0 if it runs no kernel.

        Of a storage that an op sees a part of, only the part counts, as far as the shapes tell.
        """
        name = _base_name(op)
        moved = read_bytes + written_bytes
        if moved == 0 or name in _NO_KERNEL:
            return 0.0
        if shapes.size_bytes:
            moved = min(moved, shapes.size_bytes)
        memory_us = moved / (self.bytes_per_second * self.bandwidth_efficiency) * 1e6
        return max(self.launch_us, memory_us, self._arithmetic_us(name, shapes))

    def _arithmetic_us(self, name: str, shapes: Shapes) -> float:
        count = flops(name, shapes)
        if count == 0:
            return 0.0
        operand = next(tensor for tensor in shapes.inputs if tensor)
        dtype = _DTYPES.get(operand.dtype, "float32")
        on_tensor_cores = self.tf32_convolutions if _CONVOLUTION.match(_forward(name)) else self.tf32_products
        if dtype == "float32" and on_tensor_cores and "tfloat32" in self.flops:
            dtype = "tfloat32"
        return count / (self.flops.get(dtype, self.flops["float32"]) * self.flops_efficiency) * 1e6


def flops(op: str, shapes: Shapes) -> int:
    """Return the floating-point operations of a product, convolution or attention, and 0 for any other op.

    A multiplication and an addition count as two. The part that a causal mask spares is counted too.
    """
    name = _base_name(op)
    known = [tensor for tensor in shapes.inputs if tensor]
    if name in _PRODUCTS:
        return _product_flops(shapes, _PRODUCTS[name])
    if _CONVOLUTION.match(_forward(name)):
        return _convolution_flops(name, shapes, known)
    if _ATTENTION.match(name):
        return _attention_flops(name, known)
    return 0


def _product_flops(shapes: Shapes, operand: int) -> int:
    factor = shapes.inputs[operand] if operand < len(shapes.inputs) else None
    out = shapes.outputs[0] if shapes.outputs else None
    return 2 * out.count * factor.shape[-1] if out and factor and factor.shape else 0


def _convolution_flops(name: str, shapes: Shapes, known: Sequence[Tensor]) -> int:
    """One multiplication for every weight at every place of the smaller image, whichever way it is transposed."""
    if name.endswith("_backward"):
        images, weight = known[:2], known[2]  # gradient of the output, input
        wanted = sum(tensor is not None for tensor in shapes.outputs[:2])  # of the input, of the weight
    else:
        images, weight, wanted = [known[0], *(t for t in shapes.outputs[:1] if t)], known[1], 1
    batch = known[0].shape[0] if len(known[0].shape) == len(weight.shape) else 1
    places = min(math.prod(image.shape[2 - len(weight.shape) :]) for image in images)
    return 2 * batch * places * weight.count * wanted


def _attention_flops(name: str, known: Sequence[Tensor]) -> int:
    backward = name.endswith("_backward")
    query, key, value = known[1:4] if backward else known[:3]
    pairs = math.prod(query.shape[:-1]) * key.shape[-2]
    width, value_width = query.shape[-1], value.shape[-1]
    # Backward makes the scores again and then four gradients: of values, scores, queries and keys.
    return 2 * pairs * (3 * width + 2 * value_width if backward else width + value_width)


def _base_name(op: str) -> str:
    return op.rpartition("::")[2].partition(".")[0]


def _forward(name: str) -> str:
    return name.removesuffix("_backward")


def _tera(**flops: float) -> dict[str, float]:
    return {dtype: value * 1e12 for dtype, value in flops.items()}


# For the H100 and the H200 the data sheets give tensor cores with sparsity, which is twice these figures.
_HOPPER = _tera(float64=34, float32=67, tfloat32=494.5, float16=989.5, bfloat16=989.5)

ACCELERATORS: dict[str, Accelerator] = {
    # NVIDIA Tesla V100 data sheet (2018), SXM2 with 32 GB.
    "v100": Accelerator("V100 SXM2 32 GB", _tera(float64=7.8, float32=15.7, float16=125), 0.9e12),
    # NVIDIA A100 data sheet (2021), SXM with 80 GB.
    "a100": Accelerator(
        "A100 SXM 80 GB", _tera(float64=9.7, float32=19.5, tfloat32=156, float16=312, bfloat16=312), 2.039e12
    ),
    # NVIDIA H100 data sheet (2023), SXM.
    "h100": Accelerator("H100 SXM", _HOPPER, 3.35e12),
    # NVIDIA H200 data sheet (2024), SXM: the H100's arithmetic with faster memory.
    "h200": Accelerator("H200 SXM", _HOPPER, 4.8e12),
}
"""Profiles by the name that `accelerator_named` takes."""


def accelerator_named(name: str) -> Accelerator:
    """Return the profile called `name`. Raises InputError for an unknown name."""
    if name.lower() not in ACCELERATORS:
        raise InputError(f"no accelerator is called '{name}'", remedy=f"take one of {', '.join(ACCELERATORS)}")
    return ACCELERATORS[name.lower()]
