// The doors for what is not an op: raw pointers, hashes, questions about one storage.
#include <algorithm>
#include <stdexcept>

#include "engine.h"
#include "observer.h"
#include "pointers.h"
#include "values.h"

namespace memfit {

namespace {

// Who comes by a door in another stream than the compute stream has perhaps written to the bytes there, and will perhaps
// read or write them there: they move after the one, and before the other.
template <typename Action>
auto in_order(Device& device, const Action& action) -> decltype(action()) {
  const bool is_aside = device.is_aside();
  if (is_aside) device.lead();
  auto result = action();
  if (is_aside) device.follow();
  return result;
}

}  // namespace

void Engine::adopt(const c10::Storage& storage) {
  bool meta = lasting_.ghosts.are_watched() && storage.device_type() == at::DeviceType::Meta;
  Lock lock(*this);
  if (meta) return (void)lasting_.ghosts.of(this_thread(), storage, /*is_new=*/false);
  Session* session = lock.governing();
  if (session == nullptr || !session->memory.device->has(storage.device())) return;
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (Block* block = lasting_.books.find(impl)) {
    lasting_.books.attach(*block, storage);
    block->held = block->kept_for != nullptr;
    block->idle_since = lasting_.books.now();  // whoever held it may have written to it until now
  } else if (session->adoption.is_adoptable(impl)) {
    in_order(*session->memory.device, [&] { return session->adoption.somewhere(storage), true; });
  }
}

Block* Engine::hold(const c10::Storage& storage, bool stays) {
  ThreadState outside;  // not this thread's: a hold is no op
  outside.suspended = Turns::own(this_thread());  // though it may be asked for in one: by a hook, or a mode
  for (int attempt = 0;; ++attempt) {
    std::vector<Block*> wanted;
    {
      Lock lock(*this);
      Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
      if (block == nullptr) return nullptr;
      lasting_.books.attach(*block, storage);
      if (attempt < kAttempts) wanted = Discarding::wanted_with(*block);
      Books::hold(wanted);
      if (wanted.empty() && hold(lock, *block, stays, outside)) return block;
    }
    if (wanted.empty()) raise(outside.failure);
    recomputing_.make(wanted);
  }
}

bool Engine::hold(const Lock& lock, Block& block, bool stays, ThreadState& outside) {
  ++block.active;
  block.dirty = true;  // whoever holds it may write to it unseen
  Values::end(block);
  const bool is_there = in_order(*block.device, [&] {
    const bool came = bring_in(lock.session(), outside, block, stays);
    if (came && stays && lock.governing() != nullptr) lock.session()->shelf.keep(block);
    return came;
  });
  if (is_there) return true;
  let_go(session_.get(), block);
  return false;
}

bool Engine::bring_in(Session* session, ThreadState& outside, Block& block, bool stays) {
  if (session != nullptr && block.mapped && block.active == 1) session->paging.bring_out(block, stays);
  if (block.resident()) return true;
  if (session == nullptr) {
    Restored restored;
    if (restoring_.restore(block, restored)) return true;
    outside.failure = Refusals::of_tier(outside, restored.why());
    return false;
  }
  try {
    do {
      if (block.dead || session->room.make_available(block, 0)) return true;
    } while (session->room.may_come(outside, block.bytes));
    session->refusals.refuse(outside, block.bytes);
  } catch (const TierFailure& error) {
    session->refusals.refuse_by_tier(outside, error.what());
  }
  return false;
}

void Engine::unhold(Block* block) {
  Lock lock(*this);
  let_go(lock.session(), *block);
}

void Engine::pin(Block* block, int64_t source) {
  Lock lock(*this);
  block->source = source;
  Recorder::pin(*block, lock.session() != nullptr ? &lock.session()->recorder : nullptr);
}

bool Engine::map(const c10::Storage& storage) {
  adopt(storage);
  return governing([&](Session& session) {
    Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
    return block != nullptr && session.paging.keep(*block);
  });
}

bool Engine::is_known(const void* address) {
  Lock lock(*this);
  return lasting_.books.find_at(address) != nullptr;
}

bool Engine::pin_address(const void* address) {
  Lock lock(*this);
  Block* block = lasting_.books.find_at(address);
  if (block != nullptr) Recorder::pin(*block, lock.session() != nullptr ? &lock.session()->recorder : nullptr);
  return block != nullptr;
}

bool Engine::drop_bytes(const c10::Storage& storage) {
  at::DataPtr dropped;  // what is behind it goes where nothing is locked
  Lock lock(*this);
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  const Block* block = lasting_.books.find(impl);
  const bool is_away = block != nullptr && !block->resident() && !block->copy && block->active == 0 && impl.resizable();
  if (!is_away || lock.governing() == nullptr) return false;
  at::DataPtr& pointer = impl._mutable_data_ptr_no_checks();
  dropped = std::move(pointer);
  pointer = at::DataPtr(nullptr, storage.device());
  impl.set_nbytes(0);
  open_again(impl);
  return true;
}

void Engine::begin_to_keep() { this_thread().keeps = true; }

void Engine::end_keeping(bool for_good) {
  ThreadState& thread = this_thread();
  Lock lock(*this);
  thread.keeps = false;
  Recorder* recorder = lock.session() != nullptr ? &lock.session()->recorder : nullptr;
  for (Block* block : lasting_.books.all()) {
    if (block->kept_for != &thread) continue;
    block->kept_for = nullptr, block->held = false;
    if (for_good) Recorder::pin(*block, recorder);
  }
  if (lasting_.turns.any_waits()) lasting_.turns.somebody_let_go();
}

void Engine::coalesce_collectives(bool on) {
  Lock lock(*this);
  lasting_.collectives.coalesce(on);
}

void Engine::collective_is_over(const void* work) {
  Lock lock(*this);
  if (lock.governing() != nullptr) lasting_.collectives.is_over(work);
}

std::string Engine::read_bytes(const c10::Storage& storage, size_t offset, size_t size) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  recomputing_.make_those([&](Session& session) {
    Block* block = session.lasting.books.find(impl);
    return block != nullptr && block->discarded ? std::vector<Block*>{block} : std::vector<Block*>();
  });
  Lock lock(*this);
  Block* block = lasting_.books.find(impl);
  Device& device = block == nullptr ? find_device(storage.device()) : *block->device;
  bool here = block == nullptr || block->resident();
  const auto* data = static_cast<const char*>(impl._mutable_data_ptr_no_checks().get());
  if (here && data == nullptr && size != 0) throw std::invalid_argument("memfit: the storage has no bytes in memory");
  std::string bytes(here ? size : block->bytes, '\0');
  if (block == nullptr) device.finish();  // any stream may be writing to it
  if (here)
    device.copy(bytes.data(), data + offset, size);
  else
    block->read_back(bytes.data());
  device.finish();
  return here ? bytes : bytes.substr(offset, size);
}

int64_t Engine::block_id(const c10::Storage& storage) {
  bool meta = storage.device_type() == at::DeviceType::Meta;
  Lock lock(*this);
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = meta ? ghost_behind(impl) : lasting_.books.find(impl);
  return block == nullptr ? -1 : static_cast<int64_t>(block->id);
}

bool Engine::may_leave(const c10::Storage& storage) {
  Lock lock(*this);
  const c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  Block* block = lasting_.books.find(impl);
  if (block != nullptr) return !block->pinned;
  return lock.session() != nullptr && lock.session()->adoption.is_adoptable(impl);
}

bool Engine::is_operand(const c10::Storage& storage) {
  const ThreadState& thread = this_thread();
  if (thread.depth == 0) return false;
  Lock lock(*this);
  const Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
  if (block == nullptr || !block->resident() || block->touched_by != thread.serial) return false;
  return std::find(thread.resting.begin(), thread.resting.end(), block) == thread.resting.end();
}

std::optional<std::pair<uintptr_t, size_t>> Engine::place_of(const c10::Storage& storage) {
  const c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const std::pair<uintptr_t, size_t> itself{reinterpret_cast<uintptr_t>(impl), 0};
  Lock lock(*this);
  if (lasting_.books.find(*impl) != nullptr) return itself;
  if (lock.session() != nullptr && lock.session()->adoption.is_adoptable(*impl)) return itself;
  const auto* at = static_cast<const char*>(storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
  for (const Block* block : lasting_.books.all()) {
    if (at == nullptr || !block->resident() || !block->attached()) continue;
    if (block->address() <= at && at < block->address() + block->bytes)
      return std::pair{reinterpret_cast<uintptr_t>(block->storage_address), static_cast<size_t>(at - block->address())};
  }
  return std::nullopt;
}

bool Engine::is_resident(const c10::Storage& storage) {
  Lock lock(*this);
  Block* block = lasting_.books.find(*storage.unsafeGetStorageImpl());
  return block == nullptr || block->resident();
}

}  // namespace memfit
