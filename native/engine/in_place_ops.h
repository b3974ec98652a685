// The operators of which one output may lie in the place of one input: each element of it is written when no more is to be
// read of that input but, at most, elements behind it in its own row.
//
// Which calls of them do, for inputs of which layout, is tried (trying.h).
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

namespace memfit {

// In order.
constexpr std::string_view kInPlaceOps[] = {
    "aten::_log_softmax",
    "aten::_log_softmax_backward_data",
    "aten::_softmax",
    "aten::_softmax_backward_data",
    "aten::abs",
    "aten::add",
    "aten::addcdiv",
    "aten::addcmul",
    "aten::clamp",
    "aten::clamp_max",
    "aten::clamp_min",
    "aten::cos",
    "aten::div",
    "aten::elu",
    "aten::elu_backward",
    "aten::exp",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::hardsigmoid",
    "aten::hardsigmoid_backward",
    "aten::hardswish",
    "aten::hardswish_backward",
    "aten::hardtanh",
    "aten::hardtanh_backward",
    "aten::leaky_relu",
    "aten::leaky_relu_backward",
    "aten::lerp",
    "aten::log",
    "aten::masked_fill",
    "aten::maximum",
    "aten::minimum",
    "aten::mish",
    "aten::mish_backward",
    "aten::mul",
    "aten::neg",
    "aten::pow",
    "aten::reciprocal",
    "aten::relu",
    "aten::rsqrt",
    "aten::rsub",
    "aten::sigmoid",
    "aten::sigmoid_backward",
    "aten::silu",
    "aten::silu_backward",
    "aten::sin",
    "aten::softplus",
    "aten::softplus_backward",
    "aten::sqrt",
    "aten::sub",
    "aten::tanh",
    "aten::tanh_backward",
    "aten::threshold",
    "aten::threshold_backward",
    "aten::where",
};

static_assert(std::is_sorted(std::begin(kInPlaceOps), std::end(kInPlaceOps)));

// `name`: without its overload.
inline bool may_be_in_place(std::string_view name) {
  return std::binary_search(std::begin(kInPlaceOps), std::end(kInPlaceOps), name);
}

}  // namespace memfit
