// Adoption: ordinary memory becomes a block's, and back again when the session ends.
#include <algorithm>

#include "engine.h"
#include "lock.h"
#include "observer.h"
#include "pointers.h"

namespace memfit {

namespace {

// torch's errors carry the native stack with them.
std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace

// Ordinary memory of torch's own allocator, with no numpy array on it (that makes a storage unresizable).
bool Engine::adoptable(const c10::StorageImpl& storage) const {
  const at::DataPtr& pointer = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return pointer.get() != nullptr && pointer.get_context() == pointer.get() &&
         pointer.get_deleter() == memory_.device->ordinary().raw_deleter() && storage.resizable() && storage.nbytes() > 0 &&
         !memory_.device->is_placed(pointer.get());
}

// Move ordinary memory into the arena; nullptr when there is no room.
Block* Engine::adopt_into_arena(const c10::Storage& storage, size_t more) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = new_block(impl.nbytes());
  try {
    block->region = placing_.place(block->bytes, more, block);
    if (block->region != nullptr) memory_.arena->back(block->region);
  } catch (...) {
    delete_block(block);
    throw;
  }
  if (block->region == nullptr) {
    delete_block(block);
    return nullptr;
  }
  block->arena = memory_.arena;
  memory_.device->copy(block->address(), impl._mutable_data_ptr_no_checks().get(), block->bytes);
  adopted(*block, storage);
  put_behind_ordinary(*block, impl);
  return block;
}

// Write ordinary memory straight to the tier.
void Engine::adopt_into_tier(const c10::Storage& storage) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  size_t bytes = impl.nbytes();
  Slot slot = memory_.tier->put(impl._mutable_data_ptr_no_checks().get(), bytes);
  Block* block = new_block(bytes);
  block->slot = slot;
  block->tier = memory_.tier;
  block->dirty = false;
  stats_.bytes_out += bytes;
  stats_.untimed_out += bytes;
  adopted(*block, storage);
  put_behind_ordinary(*block, impl);
}

void Engine::adopted(Block& block, const c10::Storage& storage) {
  books_.attach(block, storage);
  block.held = false;
  block.last_use = books_.now();
  stats_.live += block.bytes;
  stats_.adopted += block.bytes;
  moves_.note_peaks();
  if (recorder_.on()) recorder_.adopted(block);
}

// The storage's ordinary memory goes; the block's bytes, wherever they are, come in its place.
void Engine::put_behind_ordinary(Block& block, c10::StorageImpl& impl) {
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

void Engine::adopt(const c10::Storage& storage) {
  bool meta = ghosts_.are_watched() && storage.device_type() == at::DeviceType::Meta;
  Lock lock(*this);
  if (meta) return (void)ghosts_.of(this_thread(), storage, /*is_new=*/false);
  if (!governs() || !memory_.device->has(storage.device())) return;
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (Block* block = books_.find(impl)) {
    books_.attach(*block, storage);
    block->held = false;
  } else if (adoptable(impl)) {
    adopt_somewhere(storage);
  }
}

void Engine::adopt_somewhere(const c10::Storage& storage) {
  if (memory_.arena->ranges.largest_free() >= memory_.arena->round(storage.nbytes())) {
    try {
      if (adopt_into_arena(storage, 0) != nullptr) return;
    } catch (const TierFailure&) {
      // What is still to be adopted may fill the device: the tier takes it for now.
    }
  }
  adopt_into_tier(storage);
}

void Engine::finish() {
  Lock lock(*this);
  if (governs()) memory_.device->finish();
}

void Engine::release_cached() {
  Lock lock(*this);
  if (governs()) memory_.device->release_cached();
}

// References to all storages, had before the mutex is taken: for some of them the interpreter is needed.
std::vector<Engine::StorageRef> Engine::live_storages() {
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known;
  {
    Lock lock(*this);
    for (const Block* block : books_.all())
      if (block->attached()) known.push_back(block->storage);
  }
  std::vector<StorageRef> alive;
  for (const auto& storage : known)
    if (StorageRef reference = storage.lock()) alive.push_back(std::move(reference));
  return alive;
}

// What is in the arena can stay there if memory is short: what is not comes first. The rest comes in the order of
// addresses, so that whole pages are given back on the way.
void Engine::restore_all(StopReport& report) {
  memory_.arena->dissolve_shelf(tell_owner);  // what it kept free is a page's too
  memory_.arena->shrink(memory_.arena->ranges.limit());
  std::vector<Block*> blocks = books_.all();
  auto place = [](const Block* block) { return block->resident() ? block->address() : nullptr; };
  std::sort(blocks.begin(), blocks.end(), [&](const Block* a, const Block* b) { return place(a) < place(b); });
  for (Block* block : blocks)
    if (!restore(*block, report)) ++report.left_in_arena;
  memory_.arena->shrink(memory_.arena->ranges.limit());
}

// Give the storage ordinary memory of its own. False when its bytes must stay where they are.
bool Engine::restore(Block& block, StopReport& report) {
  bool movable = block.attached() && block.active == 0 && !block.pinned && !block.held;
  if (block.resident() && !movable) return false;
  StorageRef storage = reference_to_storage(block);
  if (!storage) return !block.resident() || block.storage.expired();
  books_.bury(storage);
  if (block.resident() && movable_storage(block) == nullptr) return false;
  try {
    at::DataPtr memory = block.device->ordinary().allocate(block.bytes);
    if (block.resident()) {
      block.device->copy(memory.get(), block.address(), block.bytes);
      books_.leaves(block);
    } else {
      block.tier->get(block.slot, memory.get(), block.bytes);
    }
    storage->_mutable_data_ptr_no_checks().release_context();
    storage->set_data_ptr_noswap(std::move(memory));
    open_again(*storage);
  } catch (const std::exception& error) {
    if (!block.resident()) {
      const std::string why = words_of(error);
      mark_unavailable(block, kLost + why);
      // What an earlier session lost is not this one's loss.
      if (block.tier == memory_.tier) report.lost.push_back(format_bytes(block.bytes) + ": " + why);
    }
    return false;
  }
  if (block.resident()) {
    block.arena->give_back_with_pages(block.region);
    block.region = nullptr;
  }
  ++report.restored;
  delete_block(&block);
  return true;
}

}  // namespace memfit
