#include "adoption.h"

#include "pointers.h"

namespace memfit {

bool Adoption::is_adoptable(const c10::StorageImpl& storage) const {
  const at::DataPtr& pointer = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return pointer.get() != nullptr && pointer.get_context() == pointer.get() &&
         pointer.get_deleter() == memory_.device->ordinary().raw_deleter() && storage.resizable() && storage.nbytes() > 0 &&
         !memory_.device->is_placed(pointer.get());
}

bool Adoption::find_place(Block& block, size_t more) {
  block.region = placing_.place(block.bytes, &block, {more});
  if (block.region != nullptr) memory_.arena->back(block.region);
  return block.region != nullptr;
}

bool Adoption::into_arena(const c10::Storage& storage, size_t more) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = blocks_.make(impl.nbytes());
  bool placed = false;
  try {
    placed = find_place(*block, more);
  } catch (...) {
    blocks_.remove(block);
    throw;
  }
  if (!placed) {
    blocks_.remove(block);
    return false;
  }
  block->arena = memory_.arena;
  memory_.device->copy(block->address(), impl._mutable_data_ptr_no_checks().get(), block->bytes);
  adopted(*block, storage);
  put_behind_ordinary(*block, impl);
  return true;
}

void Adoption::into_tier(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  size_t bytes = impl.nbytes();
  Extent extent = memory_.tier->put(impl._mutable_data_ptr_no_checks().get(), bytes);
  Block* block = blocks_.make(bytes);
  block->extent = extent;
  block->tier = memory_.tier;
  block->dirty = false;
  stats_.bytes_out += bytes;
  stats_.untimed_out_bytes += bytes;
  adopted(*block, storage);
  put_behind_ordinary(*block, impl);
}

void Adoption::adopted(Block& block, const c10::Storage& storage) {
  books_.attach(block, storage);
  block.held = false;
  block.last_use = books_.now();
  stats_.live_bytes += block.bytes;
  stats_.adopted_bytes += block.bytes;
  moves_.note_peaks();
  if (recorder_.on()) recorder_.adopted(block);
}

// The storage's ordinary memory goes; the block's bytes, wherever they are, come in its place.
void Adoption::put_behind_ordinary(Block& block, c10::StorageImpl& impl) {
  at::DataPtr& pointer = impl._mutable_data_ptr_no_checks();
  void* ordinary = pointer.release_context();
  impl.set_allocator(&memory_.device->own());  // what it may grow into later belongs to the budget too
  put_behind(impl, block.resident() ? block.address() : nullptr, block);
  if (block.resident())
    books_.arrives(block, impl);
  else
    set_absent(impl);
  ordinary_.release(*memory_.device, ordinary);
}

void Adoption::somewhere(const c10::Storage& storage) {
  if (memory_.arena->ranges.largest_free() >= memory_.arena->round(storage.nbytes()) || compaction_.all_fit(storage.nbytes())) {
    try {
      if (into_arena(storage, 0)) return;
    } catch (const TierFailure&) {
      // Storages that are still to be adopted may fill the device: the tier takes this one for now.
    }
  }
  into_tier(storage);
}

}  // namespace memfit
