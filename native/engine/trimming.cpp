#include "trimming.h"

#include <ATen/EmptyTensor.h>

#include "observer.h"
#include "operands.h"
#include "pointers.h"
#include "refusals.h"

namespace memfit {

namespace {

constexpr size_t kLeast = 4096;  // bytes: to spare fewer is not worth a copy

// The bytes up to the tensor's last element, where that is at most half of its storage and nobody else has this.
// Otherwise 0.
size_t needed_bytes(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (is_wrapper(*impl) || !impl->has_storage() || impl->layout() != at::kStrided || impl->has_symbolic_sizes_strides()) return 0;
  if (impl->is_nested() || impl->is_quantized()) return 0;
  const c10::StorageImpl& storage = *impl->unsafe_storage().unsafeGetStorageImpl();
  const size_t itemsize = tensor.itemsize();
  if (storage.sym_nbytes().is_heap_allocated() || static_cast<size_t>(tensor.numel()) * itemsize * 2 > storage.nbytes()) return 0;
  if (storage.nbytes() < kLeast || !storage.resizable() || impl->unsafe_storage().use_count() != 1) return 0;
  const size_t needed =
      at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), itemsize, static_cast<size_t>(impl->storage_offset()));
  return needed * 2 <= storage.nbytes() ? needed : 0;
}

}  // namespace

// What may be repeated does nothing but return its outputs: nobody knows the address of their bytes. (Beside the compute
// stream they may not be there yet when that copies them.)
void Trimming::op_ends(ThreadState& thread, const OpInfo& op, c10::ArrayRef<c10::IValue> outputs) {
  if (!op.is_repeatable || op.uninitialised || thread.is_apart() || thread.aside) return;
  if (thread.failure.kind != Failure::Kind::kNone) return;
  for (const c10::IValue& output : outputs)
    if (output.isTensor() && output.toTensor().defined()) trim(thread, output.toTensor());
}

void Trimming::trim(ThreadState& thread, const at::Tensor& tensor) {
  const size_t bytes = needed_bytes(tensor);
  if (bytes == 0) return;
  const c10::Storage& storage = tensor.unsafeGetTensorImpl()->unsafe_storage();
  Block* large = books_.find(*storage.unsafeGetStorageImpl());
  if (large == nullptr || !memory_.holds(*large) || large->pinned || large->held || large->value) return;
  if (large->active == 1 && large->born_in == thread.serial && large->maker == &thread) exchange(thread, storage, *large, bytes);
}

void Trimming::exchange(ThreadState& thread, const c10::Storage& storage, Block& large, size_t bytes) {
  Block* small = allocation_.allocate(thread, bytes, /*inside=*/true, thread.source);
  if (small == nullptr) {  // the result stays where it is
    thread.untold = false;
    return Refusals::forget(thread);
  }
  memory_.device->copy(small->address(), large.address(), bytes);
  put_behind(*storage.unsafeGetStorageImpl(), small->address(), *small);
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  books_.attach(*small, storage);
  thread.window.give_back(large.ticket);
  allocation_.release(thread, &large);
  ++stats_.trims;
}

}  // namespace memfit
