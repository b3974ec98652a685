// The doors for what is not an op: raw pointers, hashes, questions about one storage.
#include <stdexcept>

#include "engine.h"
#include "lock.h"
#include "observer.h"
#include "pointers.h"

namespace memfit {

// Bring the storage's bytes in and keep them there until `unhold`; where they can be kept for good, if its memory is
// about to escape (`stays`). Null when it is none of the engine's.
Block* Engine::hold(const c10::Storage& storage, bool stays) {
  ThreadState outside;  // not this thread's: a hold is no op
  {
    Lock lock(*this);
    Block* block = books_.find(*storage.unsafeGetStorageImpl());
    if (block == nullptr) return nullptr;
    books_.attach(*block, storage);
    ++block->active;
    block->dirty = true;  // whoever holds it may write to it unseen
    try {
      bool available;
      do {
        available = block->dead || make_available(*block, 0);
      } while (!available && (wait_for_others(outside) || grow(block->bytes)));
      if (available) {
        if (stays) shelf_.keep(*block);
        return block;
      }
      fail(outside, Failure::Kind::kBudget, "", block->bytes);
    } catch (const TierFailure& error) {
      fail(outside, Failure::Kind::kTier, error.what(), block->bytes);
    }
    deactivate(*block);
  }
  raise(outside.failure);
}

void Engine::unhold(Block* block) {
  Lock lock(*this);
  deactivate(*block);
}

// Raw memory of a held block has escaped, at line `source`: it stays where it is until its storage dies.
void Engine::pin(Block* block, int64_t source) {
  Lock lock(*this);
  block->pinned = true;
  block->source = source;
}

bool Engine::is_known(const void* address) {
  Lock lock(*this);
  return books_.find_at(address) != nullptr;
}

bool Engine::pin_address(const void* address) {
  Lock lock(*this);
  Block* block = books_.find_at(address);
  if (block != nullptr) block->pinned = true;
  return block != nullptr;
}

std::string Engine::read_bytes(const c10::Storage& storage, size_t offset, size_t size) {
  Lock lock(*this);
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = books_.find(impl);
  Device& device = block == nullptr ? find_device(storage.device()) : *block->device;
  bool here = block == nullptr || block->resident();
  const auto* data = static_cast<const char*>(impl._mutable_data_ptr_no_checks().get());
  if (here && data == nullptr && size != 0) throw std::invalid_argument("memfit: the storage has no bytes in memory");
  std::string bytes(here ? size : block->bytes, '\0');
  if (block == nullptr) device.finish();  // any stream may be writing to it
  if (here)
    device.copy(bytes.data(), data + offset, size);
  else
    block->tier->get(block->slot, bytes.data(), block->bytes);
  device.finish();
  return here ? bytes : bytes.substr(offset, size);
}

int64_t Engine::block_id(const c10::Storage& storage) {
  bool meta = storage.device_type() == at::DeviceType::Meta;
  Lock lock(*this);
  Block* block = meta ? ghost_behind(*storage.unsafeGetStorageImpl()) : books_.find(*storage.unsafeGetStorageImpl());
  return block == nullptr ? -1 : static_cast<int64_t>(block->id);
}

bool Engine::may_leave(const c10::Storage& storage) {
  Lock lock(*this);
  const c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = books_.find(impl);
  return block != nullptr ? !block->pinned : adoptable(impl);
}

bool Engine::is_resident(const c10::Storage& storage) {
  Lock lock(*this);
  Block* block = books_.find(*storage.unsafeGetStorageImpl());
  return block == nullptr || block->resident();
}

}  // namespace memfit
