// What runs in slices, and what tries them, have in common.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstddef>

#include "split_rules.h"
#include "strip.h"

namespace memfit {

inline char* address_of(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

// (Braces would make a list of two values.)
inline Inputs inputs_in(const torch::jit::Stack& stack) { return Inputs(stack.data(), stack.size()); }

// `action(chunk's place in the whole, in bytes; place in the slice; bytes)` for each chunk of a slice.
template <typename Action>
void each_chunk(const Strip& strip, size_t begin, size_t end, const Action& action) {
  const size_t bytes = (end - begin) * strip.inner;
  for (size_t chunk = 0; chunk < strip.outer; ++chunk) action(strip.chunk_at(chunk, begin), chunk * bytes, bytes);
}

}  // namespace memfit
