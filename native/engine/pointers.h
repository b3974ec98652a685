// The pointer behind a storage: resident (data == context, so that raw_allocate works) or absent (null data,
// the block as context, so that the deleter still runs).
#pragma once

#include <c10/core/StorageImpl.h>

#include <string>

#include "arena.h"
#include "block.h"

namespace memfit {

void delete_resident(void* address);
void delete_absent(void* block);
Block* ghost_behind(c10::StorageImpl& storage);

// `numpy()` makes a storage unresizable, by whatever way it was called. (So does loading one from a file, which
// gives it no allocator either.)
inline bool has_escaped(const c10::StorageImpl& storage) {
  return !storage.resizable() && storage.allocator() != nullptr;
}

inline bool points_to(c10::StorageImpl& storage, const Block& block) {
  const at::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  return block.resident() && pointer.get_deleter() == &delete_resident && pointer.get() == block.address() &&
         pointer.get_context() == block.address() && !has_escaped(storage);
}

inline void replace_pointer(c10::StorageImpl& storage, void* data, void* context, c10::DeleterFnPtr deleter) {
  at::Device device = storage.device();
  storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(at::DataPtr(data, context, deleter, device));
}

// torch 2.11 has no call that undoes `release_data_and_set_meta_custom_data_ptr_error_msg_`. Naming a private member in
// an explicit instantiation is allowed, and gives a way to it ([temp.spec]/6).
template <bool c10::StorageImpl::*Throws, void (c10::StorageImpl::*Refresh)()>
struct StorageGuard {
  friend void lift_guard(c10::StorageImpl& storage) {
    storage.*Throws = false;
    storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
    (storage.*Refresh)();
  }
};
void lift_guard(c10::StorageImpl& storage);
template struct StorageGuard<&c10::StorageImpl::throw_on_immutable_data_ptr_, &c10::StorageImpl::refresh_has_data_ptr_check>;

template <typename Storage>
void open_again(Storage& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); })
    storage.clear_data_ptr_access_error_msg_();
  else
    lift_guard(storage);
}

inline void set_absent(c10::StorageImpl& storage, Block& block) {
  replace_pointer(storage, nullptr, &block, &delete_absent);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "memfit: this tensor's bytes are not in memory now and this access is not an op");
}

}  // namespace memfit
