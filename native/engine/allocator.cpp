// The CPU allocator that stands in for torch's while a session is active, and the deleters of its pointers.
//
// Once installed it stays: memory taken raw (without a storage) in a session may be given back after it, and
// only this allocator can tell whose it is. Without a session it hands every call on to torch's own.
#include <c10/core/CPUAllocator.h>

#include "engine.h"
#include "pointers.h"

namespace memfit {

namespace {

class Allocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override { return Engine::get().allocate(bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_resident; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

Allocator& allocator() {
  static auto* instance = new Allocator;
  return *instance;
}

}  // namespace

void delete_resident(void* address) {
  if (address != nullptr) Engine::get().release_resident(address);
}

void delete_absent(void* block) { Engine::get().release_absent(static_cast<Block*>(block)); }

void Engine::install_allocator() {
  if (previous_ != nullptr) return;
  previous_ = c10::GetCPUAllocator();
  c10::SetCPUAllocator(&allocator(), /*priority=*/100);
  install_fork_handlers();
}

c10::Allocator* Engine::own_allocator() { return &allocator(); }

}  // namespace memfit
