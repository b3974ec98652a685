// Operands: the storages inside the values that an op is given or returns.
//
// A tensor may be made of several: the members of a sparse one, the sizes of a nested one, the scales of a quantized
// one. Whatever a kernel reads through a tensor has to be shown here, or it would be moved under the kernel's hands.
#pragma once

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/ivalue.h>
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include <string>

namespace memfit {

// A storage's part in its tensor: its elements, or their description. A description is read through raw pointers
// even without an op (`nested.size(0)`), and by ops that are views.
enum class Part { kElements, kDescription };

template <typename Use>
[[gnu::always_inline]] void each_storage_of(const at::Tensor& tensor, Part part, const Use& use);

// A tensor's layout may be that of another, which it wraps (a batched one has its value's keys): only
// its class tells what it has.
template <typename Use>
[[gnu::noinline]] void each_storage_of_several(const at::Tensor& tensor, Part part, const Use& use) {
  at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_nested()) {
    if (auto* nested = dynamic_cast<at::native::NestedTensorImpl*>(impl)) {
      each_storage_of(nested->get_nested_sizes(), Part::kDescription, use);
      each_storage_of(nested->get_nested_strides(), Part::kDescription, use);
      each_storage_of(nested->get_storage_offsets(), Part::kDescription, use);
    }
  } else if (impl->is_quantized()) {
    auto* quantized = dynamic_cast<at::QTensorImpl*>(impl);
    auto quantizer = quantized != nullptr ? quantized->quantizer() : at::QuantizerPtr();
    if (auto* by_channel = dynamic_cast<at::PerChannelAffineQuantizer*>(quantizer.get())) {
      each_storage_of(by_channel->scales(), Part::kDescription, use);
      each_storage_of(by_channel->zero_points(), Part::kDescription, use);
    }
  }
  if (impl->has_storage()) return use(impl->unsafe_storage(), part);
  if (impl->is_sparse()) {
    if (auto* sparse = dynamic_cast<at::SparseTensorImpl*>(impl)) {
      each_storage_of(sparse->indices(), part, use);
      each_storage_of(sparse->values(), part, use);
    }
  } else if (impl->is_sparse_compressed()) {
    if (auto* compressed = dynamic_cast<at::SparseCsrTensorImpl*>(impl)) {
      each_storage_of(compressed->compressed_indices(), part, use);
      each_storage_of(compressed->plain_indices(), part, use);
      each_storage_of(compressed->values(), part, use);
    }
  }
}

// Nearly every tensor is the elements of one storage.
template <typename Use>
inline void each_storage_of(const at::Tensor& tensor, Part part, const Use& use) {
  if (!tensor.defined()) return;
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->is_nested() || impl->is_quantized() || !impl->has_storage()) return each_storage_of_several(tensor, part, use);
  use(impl->unsafe_storage(), part);
}

// Whether Python, or a transform, answers for its layout and device: that must not be asked for while the engine is locked,
// since the answer takes the interpreter lock, whose holder may wait for the engine.
inline bool is_wrapper(const c10::TensorImpl& impl) {
  return impl.key_set().has(c10::DispatchKey::Python) || impl.key_set().has_any(c10::functorch_transforms_ks);
}

template <typename Use>
void each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) {
    use(value.toTensor());
  } else if (value.isList()) {
    // Lists of numbers have no storages, and turning them into values is slow.
    if (value.isIntList() || value.isDoubleList() || value.isBoolList() || value.isSymIntList()) return;
    for (const c10::IValue& item : value.toListRef()) each_tensor(item, use);
  } else if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements()) each_tensor(item, use);
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) each_tensor(item.value(), use);
  }
}

template <typename Use>
[[gnu::always_inline]] inline void each_storage(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) return each_storage_of(value.toTensor(), Part::kElements, use);
  if (value.isStorage()) return use(value.toStorage(), Part::kElements);
  each_tensor(value, [&](const at::Tensor& tensor) { each_storage_of(tensor, Part::kElements, use); });
}

// "Float[2,3]". It asks the tensor for nothing that a nested tensor or one of Python's own classes might not answer.
inline std::string shape_of(const at::Tensor& tensor) {
  const at::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  std::string text = c10::toString(tensor.scalar_type());
  if (impl->is_nested() || impl->has_symbolic_sizes_strides()) return text + "[...]";
  text += '[';
  const char* comma = "";
  for (int64_t size : impl->sizes_default()) {
    text += comma + std::to_string(size);
    comma = ",";
  }
  return text + ']';
}

// It holds what no one can look into: storages in there are never seen again.
inline bool is_opaque(const c10::IValue& value) { return value.isCustomClass() || value.isCapsule(); }

}  // namespace memfit
