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
  storage._mutable_data_ptr_no_checks().release_context();
  storage.set_data_ptr_noswap(at::DataPtr(data, context, deleter, at::Device(at::DeviceType::CPU)));
}

inline void set_absent(c10::StorageImpl& storage, Block& block) {
  replace_pointer(storage, nullptr, &block, &delete_absent);
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(
      "memfit: this tensor's bytes are not in memory now and this access is not an op; "
      "use the session's hold(tensor) around it");
}

}  // namespace memfit
