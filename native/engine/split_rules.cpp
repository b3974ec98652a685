#include "split_rules.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace memfit {

namespace {

bool has_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

// The first dimension of more than one step, so that slices are stretches of a contiguous tensor. -1: there is none.
int64_t first_dim(c10::IntArrayRef sizes, int64_t until) {
  for (int64_t d = 0; d < until; ++d)
    if (sizes[d] > 1) return d;
  return -1;
}

// Each argument that is a tensor is as large along `dim`, and cut there.
std::vector<Way> all_along(Inputs inputs, const std::vector<int32_t>& arguments, int64_t dim, size_t outputs) {
  if (dim < 0) return {};
  Way way;
  way.length = inputs[arguments[0]].toTensor().size(dim);
  for (int32_t argument : arguments) {
    if (!has_tensor(inputs[argument])) continue;
    const at::Tensor& tensor = inputs[argument].toTensor();
    if (tensor.dim() <= dim || tensor.size(dim) != way.length) return {};
    way.cuts.push_back({argument, -1, dim});
  }
  way.outputs.assign(outputs, dim);
  return {way};
}

// As tensors are broadcast: what has one step along the dimension, or none, is given whole.
std::vector<Way> elementwise(Inputs inputs) {
  int64_t dims = 0;
  for (const c10::IValue& input : inputs)
    if (has_tensor(input)) dims = std::max(dims, input.toTensor().dim());
  std::vector<int64_t> sizes(dims, 1);
  for (const c10::IValue& input : inputs) {
    if (!has_tensor(input)) continue;
    const at::Tensor& tensor = input.toTensor();
    for (int64_t d = 0; d < tensor.dim(); ++d) sizes[d + dims - tensor.dim()] = std::max(sizes[d + dims - tensor.dim()], tensor.size(d));
  }
  const int64_t dim = first_dim(sizes, dims);
  if (dim < 0) return {};
  Way way{{}, {dim}, sizes[dim], false};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!has_tensor(inputs[i])) continue;
    const at::Tensor& tensor = inputs[i].toTensor();
    const int64_t own = dim - (dims - tensor.dim());
    if (own >= 0 && tensor.size(own) == way.length) way.cuts.push_back({static_cast<int32_t>(i), -1, own});
  }
  return {way};
}

// `a + alpha * b`: rounded once if there is no product.
std::vector<Way> sum(Inputs inputs) {
  std::vector<Way> ways = elementwise(inputs);
  const bool is_plain = inputs[2].toScalar().equal(1);
  for (Way& way : ways) way.bits = is_plain ? Bits::kExact : Bits::kVectors;
  return ways;
}

// Which dimension of the tensor's is meant. Raises if there is none such: the op has yet to look at what it is given.
int64_t dim_of(const at::Tensor& tensor, const c10::IValue& dim) { return c10::maybe_wrap_dim(dim.toInt(), tensor.dim(), /*wrap_scalar=*/false); }

// Rows of a softmax; the tensors are the first `count` arguments, and the next one says along which dimension. (Columns that lie beside each other are
// computed by vectors, and how threads share them is not known.)
std::vector<Way> beside(Inputs inputs, int32_t count) {
  const at::Tensor& first = inputs[0].toTensor();
  const int64_t along = dim_of(first, inputs[count]);
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[along] = 1;
  std::vector<int32_t> arguments;
  for (int32_t i = 0; i < count; ++i) arguments.push_back(i);
  const int64_t dim = first_dim(sizes, first.dim());
  if (dim > along && at::get_num_threads() > 1) return {};
  std::vector<Way> ways = all_along(inputs, arguments, dim, 1);
  for (Way& way : ways) way.bits = dim > along ? Bits::kVectors : Bits::kRows;
  return ways;
}

std::vector<Way> softmax(Inputs inputs) { return beside(inputs, 1); }
std::vector<Way> softmax_backward(Inputs inputs) { return beside(inputs, 2); }

std::vector<Way> layer_norm(Inputs inputs) {
  const at::Tensor& input = inputs[0].toTensor();
  const int64_t rows = input.dim() - static_cast<int64_t>(inputs[1].toDimVector().size());
  return all_along(inputs, {0}, first_dim(input.sizes(), rows), 3);
}

// Channels are planes of their own: what is computed of one depends on no other. (Those that lie beside each other are computed by
// vectors.)
bool has_planes(const at::Tensor& tensor) {
  return tensor.dim() > 2 && tensor.is_contiguous() && tensor.numel() > tensor.size(0) * tensor.size(1);
}

// `vectors`: the arguments that have a number for each channel, or none.
std::vector<Way> by_channel(Inputs inputs, std::initializer_list<int32_t> images, std::initializer_list<int32_t> vectors) {
  Way way;
  for (int32_t argument : images) {
    const at::Tensor& tensor = inputs[argument].toTensor();
    if (!has_planes(tensor)) return {};
    way.length = tensor.size(1);
    way.cuts.push_back({argument, -1, 1});
  }
  for (int32_t argument : vectors) {
    if (!has_tensor(inputs[argument]) || inputs[argument].toTensor().numel() == 0) continue;
    const at::Tensor& tensor = inputs[argument].toTensor();
    if (tensor.dim() != 1 || tensor.size(0) != way.length || !tensor.is_contiguous()) return {};
    way.cuts.push_back({argument, -1, 0});
  }
  return way.length > 1 ? std::vector<Way>{way} : std::vector<Way>();
}

// Statistics that it learns are written in place.
std::vector<Way> batch_norm(Inputs inputs) {
  const bool trains = inputs[5].toBool();
  std::vector<Way> ways = by_channel(inputs, {0}, {1, 2, 3, 4});
  for (Way& way : ways) {
    way.outputs = trains ? std::vector<int64_t>{1, 0, 0} : std::vector<int64_t>{1, kEmpty, kEmpty};
    for (Cut& cut : way.cuts) cut.is_written = trains && cut.argument > 2;
  }
  return ways;
}

std::vector<Way> batch_norm_backward(Inputs inputs) {
  const c10::List<bool> wanted = inputs[9].toBoolList();
  std::vector<Way> ways = by_channel(inputs, {0, 1}, {2, 3, 4, 5, 6});
  for (Way& way : ways) {
    while (way.first < 3 && !wanted.get(way.first)) ++way.first;
    for (size_t i = way.first; i < 3 && wanted.get(i); ++i) way.outputs.push_back(i == 0 ? 1 : 0);
  }
  return ways;
}

// Of batches of images; planes do not mix either. `last`: dimensions of a plane.
int64_t image_dim(const at::Tensor& tensor, int64_t last) { return first_dim(tensor.sizes(), tensor.dim() - last); }

template <int64_t last, size_t outputs>
std::vector<Way> pool(Inputs inputs) {
  return all_along(inputs, {0}, image_dim(inputs[0].toTensor(), last), outputs);
}
template <int64_t last>
std::vector<Way> pool_backward(Inputs inputs) {
  return all_along(inputs, {0, 1}, image_dim(inputs[0].toTensor(), last), 1);
}
template <int64_t last>
std::vector<Way> max_pool_backward(Inputs inputs) {
  return all_along(inputs, {0, 1, static_cast<int32_t>(inputs.size()) - 1}, image_dim(inputs[0].toTensor(), last), 1);
}

// By batch; by output channels where each sees all inputs.
std::vector<Way> convolution(Inputs inputs) {
  const at::Tensor& input = inputs[0].toTensor();
  const at::Tensor& weight = inputs[1].toTensor();
  if (input.dim() != weight.dim() || input.dim() < 3) return {};
  std::vector<Way> ways;
  if (input.size(0) > 1) ways = all_along(inputs, {0}, 0, 1);
  if (inputs[6].toBool() || inputs[8].toInt() != 1 || weight.size(0) < 2) return ways;
  Way by_channel{{{1, -1, 0}}, {1}, weight.size(0), false};
  if (has_tensor(inputs[2])) by_channel.cuts.push_back({2, -1, 0});
  ways.push_back(by_channel);
  return ways;
}

// An input's gradient is computed apart from what sums over all of it, which is not cut; `first`: how it is cut, alone.
std::vector<Way> apart(Inputs inputs, int32_t mask, std::vector<Way> (*first)(Inputs)) {
  const c10::List<bool> wanted = inputs[mask].toBoolList();
  if (!wanted.get(0)) return {};
  if (parts_asked_for(wanted).size() < 2) return first(inputs);
  Way way;
  way.length = 1;
  way.mask = mask;
  return {way};
}

// By batch.
std::vector<Way> convolution_backward_input(Inputs inputs) {
  const at::Tensor& gradient = inputs[0].toTensor();
  return gradient.dim() < 3 || gradient.size(0) < 2 ? std::vector<Way>() : all_along(inputs, {0, 1}, 0, 1);
}
std::vector<Way> convolution_backward(Inputs inputs) { return apart(inputs, 10, &convolution_backward_input); }

std::vector<Way> layer_norm_backward_input(Inputs inputs) {
  const at::Tensor& input = inputs[1].toTensor();
  const int64_t rows = input.dim() - static_cast<int64_t>(inputs[2].toDimVector().size());
  return all_along(inputs, {0, 1, 3, 4}, first_dim(input.sizes(), rows), 1);
}
std::vector<Way> layer_norm_backward(Inputs inputs) { return apart(inputs, 7, &layer_norm_backward_input); }

std::vector<Way> product(Inputs inputs, int32_t left, int32_t right, int32_t added) {
  const at::Tensor& a = inputs[left].toTensor();
  const at::Tensor& b = inputs[right].toTensor();
  if (a.dim() != 2 || b.dim() != 2) return {};
  Way rows{{{left, -1, 0}}, {0}, a.size(0), false}, columns{{{right, -1, 1}}, {1}, b.size(1), false};
  if (added >= 0) {
    const at::Tensor& bias = inputs[added].toTensor();
    if (bias.dim() == 2 && bias.size(0) == rows.length) rows.cuts.push_back({added, -1, 0});
    if (bias.dim() > 0 && bias.size(bias.dim() - 1) == columns.length) columns.cuts.push_back({added, -1, bias.dim() - 1});
  }
  std::vector<Way> ways;
  if (rows.length > 1) ways.push_back(rows);
  if (columns.length > 1) ways.push_back(columns);
  return ways;
}

std::vector<Way> mm(Inputs inputs) { return product(inputs, 0, 1, -1); }
std::vector<Way> addmm(Inputs inputs) { return product(inputs, 1, 2, 0); }
std::vector<Way> bmm(Inputs inputs) {
  return inputs[0].toTensor().size(0) > 1 ? all_along(inputs, {0, 1}, 0, 1) : std::vector<Way>();
}

// Each head of each of the batch is by itself. What is dropped is drawn. A mask of fewer dimensions is everyone's.
std::vector<Way> attention_of(Inputs inputs, const std::vector<int32_t>& arguments, int32_t dropout, int32_t mask, size_t outputs) {
  if (inputs[dropout].toDouble() != 0 || inputs[0].toTensor().dim() != 4 || inputs[0].toTensor().size(0) < 2) return {};
  std::vector<Way> ways = all_along(inputs, arguments, 0, outputs);
  for (Way& way : ways)
    if (has_tensor(inputs[mask]) && inputs[mask].toTensor().dim() == 4 && inputs[mask].toTensor().size(0) == way.length)
      way.cuts.push_back({mask, -1, 0});
  return ways;
}
std::vector<Way> attention(Inputs inputs) { return attention_of(inputs, {0, 1, 2}, 3, 5, 2); }
std::vector<Way> attention_backward(Inputs inputs) { return attention_of(inputs, {0, 1, 2, 3, 4, 5}, 6, 8, 3); }

// To another type, on the host.
std::vector<Way> to_copy(Inputs inputs) {
  const bool moves = inputs[3].isDevice() && !inputs[3].toDevice().is_cpu();
  return moves ? std::vector<Way>() : elementwise(inputs);
}

std::vector<Way> cat(Inputs inputs) {
  const auto items = inputs[0].toListRef();
  if (items.empty() || !has_tensor(items[0])) return {};
  const at::Tensor& first = items[0].toTensor();
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[dim_of(first, inputs[1])] = 1;
  const int64_t dim = first_dim(sizes, first.dim());
  if (dim < 0) return {};
  Way way{{}, {dim}, sizes[dim], false};
  for (size_t i = 0; i < items.size(); ++i) {
    const at::Tensor& each = items[i].toTensor();
    if (each.dim() != first.dim() || each.size(dim) != way.length) return {};
    way.cuts.push_back({0, static_cast<int32_t>(i), dim});
  }
  return {way};
}

std::vector<Way> embedding(Inputs inputs) {
  const at::Tensor& indices = inputs[1].toTensor();
  return all_along(inputs, {1}, first_dim(indices.sizes(), indices.dim()), 1);
}

// Of the scores only the shape counts. What is not summed has a gradient of its own for each row.
std::vector<Way> nll_loss_backward(Inputs inputs) {
  const at::Tensor& scores = inputs[1].toTensor();
  const at::Tensor& target = inputs[2].toTensor();
  if (scores.dim() != target.dim() + 1 || target.dim() < 1 || scores.size(0) < 2) return {};
  Way way{{{1, -1, 0, /*is_read=*/false}, {2, -1, 0}}, {0}, scores.size(0), false};
  if (inputs[0].toTensor().dim() > 0) way.cuts.push_back({0, -1, 0});
  return {way};
}

// Its sum over the batch stays whole: what it reads of the scores is little.
std::vector<Way> nll_loss_forward(Inputs inputs) {
  const at::Tensor& scores = inputs[0].toTensor();
  const at::Tensor& target = inputs[1].toTensor();
  const bool is_plain = scores.dim() == 2 && target.dim() == 1 && target.size(0) == scores.size(0) && scores.is_contiguous() &&
                        target.is_contiguous() && target.scalar_type() == at::kLong && !has_tensor(inputs[2]);
  if (!is_plain || (inputs[4].toInt() >= 0 && inputs[4].toInt() < scores.size(1))) return {};
  return {{{{0, -1, 0}}, {}, scores.size(0), /*gathers=*/true}};
}

const std::unordered_map<std::string_view, SplitRule> kRules = {
    {"aten::_log_softmax", {&softmax, Bits::kExact}},
    {"aten::_log_softmax_backward_data", {&softmax_backward, Bits::kExact}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu", {&attention, Bits::kSums}},
    {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", {&attention_backward, Bits::kSums}},
    {"aten::_softmax", {&softmax, Bits::kExact}},
    {"aten::_softmax_backward_data", {&softmax_backward, Bits::kExact}},
    {"aten::_to_copy", {&to_copy, Bits::kExact}},
    {"aten::add.Tensor", {&sum, Bits::kExact}},
    {"aten::addmm", {&addmm, Bits::kSums}},
    {"aten::avg_pool2d", {&pool<2, 1>, Bits::kExact}},
    {"aten::avg_pool2d_backward", {&pool_backward<2>, Bits::kExact}},
    {"aten::_adaptive_avg_pool2d", {&pool<2, 1>, Bits::kExact}},
    {"aten::_adaptive_avg_pool2d_backward", {&pool_backward<2>, Bits::kExact}},
    {"aten::bmm", {&bmm, Bits::kSums}},
    {"aten::cat", {&cat, Bits::kExact}},
    {"aten::convolution", {&convolution, Bits::kSums}},
    {"aten::convolution_backward", {&convolution_backward, Bits::kSums}},
    {"aten::div.Tensor", {&elementwise, Bits::kExact}},
    {"aten::elu", {&elementwise, Bits::kVectors}},
    {"aten::embedding", {&embedding, Bits::kExact}},
    {"aten::exp", {&elementwise, Bits::kVectors}},
    {"aten::gelu", {&elementwise, Bits::kVectors}},
    {"aten::gelu_backward", {&elementwise, Bits::kVectors}},
    {"aten::hardtanh", {&elementwise, Bits::kExact}},
    {"aten::hardtanh_backward", {&elementwise, Bits::kExact}},
    {"aten::leaky_relu", {&elementwise, Bits::kExact}},
    {"aten::leaky_relu_backward", {&elementwise, Bits::kExact}},
    {"aten::log", {&elementwise, Bits::kVectors}},
    {"aten::max_pool2d_with_indices", {&pool<2, 2>, Bits::kExact}},
    {"aten::max_pool2d_with_indices_backward", {&max_pool_backward<2>, Bits::kExact}},
    {"aten::mm", {&mm, Bits::kSums}},
    {"aten::mul.Tensor", {&elementwise, Bits::kExact}},
    {"aten::native_batch_norm", {&batch_norm, Bits::kRows}},
    {"aten::native_batch_norm_backward", {&batch_norm_backward, Bits::kRows}},
    {"aten::native_layer_norm", {&layer_norm, Bits::kRows}},
    {"aten::native_layer_norm_backward", {&layer_norm_backward, Bits::kRows}},
    {"aten::nll_loss_forward", {&nll_loss_forward, Bits::kExact}},
    {"aten::nll_loss_backward", {&nll_loss_backward, Bits::kExact}},
    {"aten::nll_loss2d_backward", {&nll_loss_backward, Bits::kExact}},
    {"aten::relu", {&elementwise, Bits::kExact}},
    {"aten::sigmoid", {&elementwise, Bits::kVectors}},
    {"aten::sigmoid_backward", {&elementwise, Bits::kVectors}},
    {"aten::silu", {&elementwise, Bits::kVectors}},
    {"aten::silu_backward", {&elementwise, Bits::kVectors}},
    {"aten::sqrt", {&elementwise, Bits::kExact}},
    {"aten::sub.Tensor", {&sum, Bits::kExact}},
    {"aten::tanh", {&elementwise, Bits::kVectors}},
    {"aten::tanh_backward", {&elementwise, Bits::kVectors}},
    {"aten::threshold_backward", {&elementwise, Bits::kExact}},
    {"aten::where.self", {&elementwise, Bits::kExact}},
};

const std::unordered_set<std::string_view> kPassingOn = {
    "aten::_batch_norm_impl_index", "aten::_convolution_mode", "aten::_scaled_dot_product_attention_math", "aten::adaptive_avg_pool2d",
    "aten::batch_norm", "aten::conv1d", "aten::conv1d.padding", "aten::conv2d", "aten::conv2d.padding", "aten::conv3d",
    "aten::conv3d.padding", "aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input",
    "aten::cross_entropy_loss", "aten::dropout", "aten::instance_norm", "aten::layer_norm", "aten::linear", "aten::log_softmax.int",
    "aten::matmul", "aten::max_pool2d", "aten::nll_loss", "aten::nll_loss_nd", "aten::scaled_dot_product_attention", "aten::softmax.int",
    "aten::to.device", "aten::to.dtype", "aten::to.dtype_layout", "aten::to.other",
};

}  // namespace

std::vector<c10::List<bool>> parts_asked_for(const c10::List<bool>& wanted) {
  std::vector<c10::List<bool>> parts;
  for (const bool is_first : {true, false}) {
    c10::List<bool> part = wanted.copy();
    bool any = false;
    for (size_t i = 0; i < part.size(); ++i) {
      if ((i == 0) != is_first) part.set(i, false);
      any = any || part.get(i);
    }
    if (any) parts.push_back(part);
  }
  return parts;
}

std::vector<Way> SplitRule::ways(Inputs inputs) const try {
  std::vector<Way> found = cut(inputs);
  for (Way& way : found) way.bits = std::max(way.bits, bits);
  const auto cut_bytes = [inputs](const Way& way) {
    size_t bytes = 0;
    for (const Cut& each : way.cuts) bytes += tensor_at(inputs, each.argument, each.item).nbytes();
    return bytes;
  };
  std::stable_sort(found.begin(), found.end(), [&](const Way& a, const Way& b) { return cut_bytes(a) > cut_bytes(b); });
  return found;
} catch (const std::exception&) {
  return {};  // the op refuses what it is given, and says why
}

const SplitRule* split_rule(std::string_view name) {
  const auto row = kRules.find(name);
  return row == kRules.end() ? nullptr : &row->second;
}

bool passes_on(std::string_view name) { return kPassingOn.count(name) != 0; }

}  // namespace memfit
