#include "telling.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>

#include "operands.h"
#include "strip.h"

namespace memfit {

namespace {

constexpr int64_t kVectors = 64;  // elements: of the two longest vectors of the smallest numbers, which loops take at a time
constexpr int64_t kGrains[] = {2048, 16384, 32768};  // elements that torch's kernels give a thread at least
constexpr int64_t kFewestSums = 256;  // that another order of adding does not leave as they are, all of them
constexpr int64_t kSamples = 512;

template <typename Use>
void each_of(Inputs inputs, const Use& use) {
  for (const c10::IValue& input : inputs)
    each_tensor(input, [&](const at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_floating_point() && tensor.numel() > 0) use(tensor);
    });
}

Strip strip_of(const Way& way, const std::vector<OutputLayout>& outputs, size_t i) {
  return Strip::of(outputs[i].sizes, outputs[i].strides, 1, way.outputs[i], 0);  // in elements
}

// No thread's part ends within vectors.
bool is_shared_evenly(int64_t elements) {
  const int64_t threads = at::get_num_threads();
  return std::all_of(std::begin(kGrains), std::end(kGrains), [&](int64_t grain) {
    const int64_t parts = std::min(threads, (elements + grain - 1) / grain);
    return parts <= 1 || (elements + parts - 1) / parts % kVectors == 0;
  });
}

// All tensors are cut, and laid out as the output is.
bool are_alike(const Way& way, Inputs inputs, const OutputLayout& output) {
  size_t count = 0;
  bool are = true;
  each_of(inputs, [&](const at::Tensor& tensor) {
    if (tensor.dim() == 0) return;
    ++count;
    are &= tensor.is_non_overlapping_and_dense() && is_laid_out_as(tensor, output.sizes, output.strides);
  });
  return are && count == way.cuts.size();
}

bool keeps_vectors(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps) {
  if (outputs.size() != 1 || !are_alike(way, inputs, outputs[0])) return false;
  const Strip strip = strip_of(way, outputs, 0);
  const int64_t inner = static_cast<int64_t>(strip.inner), outer = static_cast<int64_t>(strip.outer), rest = way.length % steps;
  const bool ends_evenly = outer == 1 || inner * rest % kVectors == 0;
  return inner * steps % kVectors == 0 && ends_evenly && is_shared_evenly(outer * inner * way.length) &&
         is_shared_evenly(outer * inner * steps) && is_shared_evenly(outer * inner * rest);
}

// Sums of short numbers are rounded to so few bits that they seldom show in what order they were added.
bool shows_sums(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps) {
  bool are_long = true;
  each_of(inputs, [&](const at::Tensor& tensor) { are_long &= tensor.itemsize() >= sizeof(float); });
  const size_t fewest = static_cast<size_t>(way.length % steps != 0 ? way.length % steps : steps);
  for (size_t i = 0; i < outputs.size() && are_long; ++i) are_long = way.outputs[i] == kEmpty || strip_of(way, outputs, i).bytes(fewest) >= kFewestSums;
  return are_long;
}

// The lower half of its digits says something.
bool is_full(const char* at, size_t itemsize) {
  uint64_t bits = 0;
  std::memcpy(&bits, at, itemsize);
  return (bits & (itemsize == 8 ? 0x3FFFFFF : itemsize == 4 ? 0xFFF : 0x7)) != 0;
}

// An eighth of its numbers could be any.
bool is_telling(const at::Tensor& tensor) {
  const auto* first = static_cast<const char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  if (first == nullptr) return false;
  const size_t itemsize = tensor.itemsize();
  const int64_t numel = tensor.numel(), count = std::min(numel, kSamples);
  int64_t full = 0;
  const char* before = nullptr;
  for (int64_t i = 0; i < count; ++i) {
    int64_t index = count == numel ? i : static_cast<int64_t>(static_cast<double>(numel) * static_cast<double>(i) / kSamples), offset = tensor.storage_offset();
    for (int64_t d = tensor.dim() - 1; d >= 0; index /= tensor.size(d--)) offset += index % tensor.size(d) * tensor.stride(d);
    const char* at = first + static_cast<size_t>(offset) * itemsize;
    if (is_full(at, itemsize) && (before == nullptr || std::memcmp(at, before, itemsize) != 0)) ++full;
    before = at;
  }
  return full * 8 >= count;
}

}  // namespace

bool could_tell(const Way& way, Inputs inputs, const std::vector<OutputLayout>& outputs, int64_t steps) {
  if (way.bits == Bits::kVectors) return keeps_vectors(way, inputs, outputs, steps);
  return way.bits != Bits::kSums || shows_sums(way, inputs, outputs, steps);
}

// (A bias, of one dimension, is added last, or first.)
bool tells(const at::Tensor& tensor, Bits bits) { return (tensor.dim() < 2 && bits == Bits::kSums) || is_telling(tensor); }

bool tell(const Way& way, Inputs inputs) {
  if (way.bits == Bits::kExact) return true;
  bool any = false, all = true;
  each_of(inputs, [&](const at::Tensor& tensor) {
    const bool does = tells(tensor, way.bits);
    any |= does;
    all &= does;
  });
  return way.bits == Bits::kSums ? all : any;
}

}  // namespace memfit
