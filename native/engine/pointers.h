// The pointer behind a storage. Its context is the block, from the first time that an op shows the storage; until then
// it is the address, as raw_allocate wants it to be.
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "arena.h"
#include "block.h"

namespace memfit {

void delete_by_address(void* address);
void delete_by_block(void* block);
Block* ghost_behind(c10::StorageImpl& storage);

// `numpy()` makes a storage unresizable, by whatever way it was called. (So does loading one from a file, which
// gives it no allocator either.)
inline bool has_escaped(const c10::StorageImpl& storage) {
  return !storage.resizable() && storage.allocator() != nullptr;
}

// Naming a private member in an explicit instantiation is allowed, and gives a way to it ([temp.spec]/6).
template <c10::detail::UniqueVoidPtr c10::DataPtr::*Pointer, void* c10::detail::UniqueVoidPtr::*Data>
struct DataAccess {
  friend void*& data_of(c10::DataPtr& pointer) { return pointer.*Pointer.*Data; }
};
void*& data_of(c10::DataPtr& pointer);
template struct DataAccess<&c10::DataPtr::ptr_, &c10::detail::UniqueVoidPtr::data_>;

inline bool is_behind(const c10::DataPtr& pointer, const Block& block) {
  return pointer.get_deleter() == &delete_by_block && pointer.get_context() == &block;
}

// The block's storage; null if it is unknown, dying, or has got other bytes. No reference is needed: the block's weak
// one keeps the object, and whoever destroys the storage meanwhile waits for the engine's mutex in the deleter. So its
// data may be set, but never its context, which may just be taken for good.
inline c10::StorageImpl* storage_behind(const Block& block) {
  c10::StorageImpl* storage = block.storage.expired() ? nullptr : block.storage._unsafe_get_target();
  return storage != nullptr && is_behind(storage->_mutable_data_ptr_no_checks(), block) ? storage : nullptr;
}

// As above, and its bytes may be moved.
inline c10::StorageImpl* movable_storage(const Block& block) {
  c10::StorageImpl* storage = block.resident() ? storage_behind(block) : nullptr;
  bool moves = storage != nullptr && !has_escaped(*storage) && storage->_mutable_data_ptr_no_checks().get() == block.address();
  return moves ? storage : nullptr;
}

template <std::atomic<uint64_t> c10::intrusive_ptr_target::*Count>
struct CountAccess {
  friend std::atomic<uint64_t>& count_of(c10::intrusive_ptr_target& target) { return target.*Count; }
};
std::atomic<uint64_t>& count_of(c10::intrusive_ptr_target& target);
template struct CountAccess<&c10::intrusive_ptr_target::combined_refcount_>;

// A reference to the block's storage; null if it has none, or if nobody but its Python object holds it: then it cannot
// be had without the interpreter (the object would have to live on, too), and nobody may wait for that with the
// engine's mutex in hand.
inline c10::intrusive_ptr<c10::StorageImpl> reference_to_storage(const Block& block) {
  constexpr uint64_t kHasObject = uint64_t{1} << 63;
  c10::StorageImpl* impl = storage_behind(block);
  if (impl == nullptr) return {};
  std::atomic<uint64_t>& count = count_of(*impl);
  uint64_t seen = count.load(std::memory_order_relaxed);
  do {
    auto references = static_cast<uint32_t>(seen);
    if (references == 0 || (references == 1 && (seen & kHasObject) != 0)) return {};
  } while (!count.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed));
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim(impl);
}

// As of an ordinary allocator's: its context is its own, and may be handed on.
inline bool is_simple(const at::DataPtr& pointer) {
  return pointer.get_deleter() == &delete_by_block || pointer.get_context() == pointer.get();
}

// `storage` is not dying: its caller has a reference.
inline void put_behind(c10::StorageImpl& storage, void* data, Block& block) {
  at::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  at::Device device = storage.device();
  pointer.release_context();
  pointer = at::DataPtr(data, &block, &delete_by_block, device);
}

// torch 2.11 has no call that undoes `release_data_and_set_meta_custom_data_ptr_error_msg_`.
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

inline void set_present(c10::StorageImpl& storage, const Block& block) {
  data_of(storage._mutable_data_ptr_no_checks()) = block.address();
  open_again(storage);
}

// The texts that torch raises, as an error of its own, for bytes that are not there. Every text put behind a
// storage begins with the mark, by which it is told from the program's own errors.
inline constexpr const char kMark[] = "memfit: ";
inline constexpr const char kAbsent[] = "memfit: this tensor's bytes are not in memory now and this access is not an op";
inline constexpr const char kLost[] = "memfit: the bytes of this tensor could not be read back: ";

// The block's bytes cannot come in: whoever asks for them is told why.
inline void set_unavailable(const Block& block, const std::string& message) {
  c10::StorageImpl* storage = block.resident() ? nullptr : storage_behind(block);
  if (storage != nullptr) storage->release_data_and_set_meta_custom_data_ptr_error_msg_(message);
}

inline void set_absent(c10::StorageImpl& storage) {
  data_of(storage._mutable_data_ptr_no_checks()) = nullptr;
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(kAbsent);
}

}  // namespace memfit
