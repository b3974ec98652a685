// Strip: where the slices of a dense tensor along one of its dimensions lie in its storage.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "split_rules.h"

namespace memfit {

// Bytes: tensors begin at multiples of them, and so do slices. Otherwise a kernel may go about it another way.
inline constexpr size_t kLine = 64;

// Slice [begin, end) is `outer` chunks of (end - begin) * inner bytes each.
struct Strip {
  size_t offset = 0;  // of the tensor's first byte in its storage
  size_t outer = 1, length = 1, inner = 1;  // chunks, steps along the dimension, bytes of a step

  // `dim` is kEmpty where there are no elements. Otherwise `tensor` is dense: its elements fill one stretch of the storage.
  static Strip of(const at::Tensor& tensor, int64_t dim) {
    const auto itemsize = tensor.itemsize();
    return of(tensor.sizes(), tensor.strides(), itemsize, dim, static_cast<size_t>(tensor.storage_offset()) * itemsize);
  }
  static Strip of(c10::IntArrayRef sizes, c10::IntArrayRef strides, size_t itemsize, int64_t dim, size_t offset) {
    if (dim == kEmpty) return {offset, 1, 0, 0};
    Strip strip{offset, 1, static_cast<size_t>(sizes[dim]), itemsize};
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (static_cast<int64_t>(d) == dim || sizes[d] == 1) continue;
      (strides[d] > strides[dim] ? strip.outer : strip.inner) *= static_cast<size_t>(sizes[d]);
    }
    return strip;
  }
  size_t bytes(size_t steps) const { return outer * steps * inner; }
  size_t chunk_at(size_t chunk, size_t begin) const { return offset + (chunk * length + begin) * inner; }
};

// The strides of a dense tensor of `sizes` whose dimensions lie in one another as those of `strides` do.
inline c10::SmallVector<int64_t, 5> dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::SmallVector<int64_t, 5> dense(sizes.size(), 1);
  for (size_t d = 0; d < sizes.size(); ++d)
    for (size_t inner = 0; inner < sizes.size(); ++inner)
      if (strides[inner] < strides[d] || (strides[inner] == strides[d] && inner > d)) dense[d] *= sizes[inner];
  return dense;
}

// A stride counts where there is more than one step to take.
inline bool is_laid_out_as(const at::Tensor& tensor, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  if (tensor.sizes() != sizes) return false;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && tensor.strides()[d] != strides[d]) return false;
  return true;
}

}  // namespace memfit
