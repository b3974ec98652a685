// The pointer behind a storage: resident (data == context, so that raw_allocate works) or absent (null data,
// the block as context, so that the deleter still runs).
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
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

// The private count is named as above. A storage that nobody but its Python object holds cannot be had without the
// interpreter (its object would have to live on, too), and nobody may wait for that with the engine's mutex in hand.
template <std::atomic<uint64_t> c10::intrusive_ptr_target::*Count>
struct CountAccess {
  friend std::atomic<uint64_t>& count_of(c10::intrusive_ptr_target& target) { return target.*Count; }
};
std::atomic<uint64_t>& count_of(c10::intrusive_ptr_target& target);
template struct CountAccess<&c10::intrusive_ptr_target::combined_refcount_>;

// A reference to the block's storage; null if it is unknown, dying, or cannot be had now.
inline c10::intrusive_ptr<c10::StorageImpl> storage_behind(const Block& block) {
  constexpr uint64_t kHasObject = uint64_t{1} << 63;
  c10::StorageImpl* impl = block.storage._unsafe_get_target();
  if (impl == nullptr) return {};
  std::atomic<uint64_t>& count = count_of(*impl);
  uint64_t seen = count.load(std::memory_order_relaxed);
  do {
    auto references = static_cast<uint32_t>(seen);
    if (references == 0 || (references == 1 && (seen & kHasObject) != 0)) return {};
  } while (!count.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim(impl);
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
