// Slices: what runs a call in slices, and what tries them, have in common.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "split_call.h"
#include "strip.h"

namespace memfit {

class Engine;
struct Block;

using Stack = torch::jit::Stack;
using Kernel = std::function<void(Stack&)>;

// Of its storage; nullptr while that is away.
inline char* address_if_here(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
}

// Raises std::runtime_error while its storage is away.
inline char* address_of(const at::Tensor& tensor) {
  char* const address = address_if_here(tensor);
  if (address == nullptr && tensor.storage().nbytes() != 0) throw std::runtime_error("a tensor that slices are put in, or compared with, is away");
  return address;
}

inline char* first_byte(const at::Tensor& tensor) { return address_of(tensor) + static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize(); }

inline std::vector<at::Tensor> tensors_of(const Stack& stack) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack)
    if (value.isTensor()) tensors.push_back(value.toTensor());
  return tensors;
}

// A new one of its own storage, dense.
inline at::Tensor new_tensor(c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const at::Tensor dense = at::detail::empty_cpu(sizes, dtype);
  dense.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return dense;
}

// A tensor of a storage that is there.
inline at::Tensor tensor_in(c10::Storage storage, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                               c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

// (Braces would make a list of two values.)
inline Inputs inputs_in(const Stack& stack) { return Inputs(stack.data(), stack.size()); }

// `action(chunk's place in the whole, in bytes; place in the slice; bytes)` for each chunk of a slice.
template <typename Action>
void each_chunk(const Strip& strip, size_t begin, size_t end, const Action& action) {
  const size_t bytes = (end - begin) * strip.inner;
  for (size_t chunk = 0; chunk < strip.outer; ++chunk) action(strip.chunk_at(chunk, begin), chunk * bytes, bytes);
}

// Of a call that is replaced by several: which outputs each is asked for, and with what it is called.
inline std::vector<c10::List<bool>> parts_in(const SplitCall& call, const Stack& stack) {
  return parts_asked_for(stack[static_cast<size_t>(call.way.mask)].toBoolList());
}

inline Stack part_of(const SplitCall& call, const Stack& stack, const c10::List<bool>& wanted) {
  Stack part = stack;
  part[static_cast<size_t>(call.way.mask)] = wanted;
  return part;
}

// A call's arguments, cut. With no lock held.
class Slices {
 public:
  explicit Slices(Engine& engine) : engine_(engine) {}

  // What the kernel returns for one slice.
  Stack run(const SplitCall& call, const Kernel& kernel, const Stack& stack, int64_t begin, int64_t end);
  Stack gathered(const SplitCall& call, const Stack& stack);
  // Raises a TierError.
  [[noreturn]] void fail(const std::string& why);

 private:
  Stack cut(const SplitCall& call, const Stack& stack, int64_t begin, int64_t end);
  at::Tensor slice_of(const SplitCall& call, size_t cut, const at::Tensor& whole, int64_t begin, int64_t end);
  void read(const Block* block, const at::Tensor& whole, const Cut& cut, int64_t begin, int64_t end, char* to);

  Engine& engine_;
};

}  // namespace memfit
