// Ghosts: storages of device meta, which have a size and a life but no bytes. In a session that watches them they
// are recorded like any other, so that a model of any size can be traced; they are in no list that the residency
// code walks, so none of them is ever placed, moved or counted.
//
// torch never asks the meta allocator again when such a storage is resized, so sizes are compared at every touch.
#include <ATen/core/Tensor.h>

#include "engine.h"
#include "hash.h"
#include "lock.h"
#include "observer.h"
#include "operands.h"
#include "pointers.h"

namespace memfit {

namespace {

void delete_ghost(void* block) { Engine::get().release_ghost(static_cast<Block*>(block)); }

at::DataPtr pointer_to(Block* ghost) { return {nullptr, ghost, &delete_ghost, at::Device(at::DeviceType::Meta)}; }

// Takes the place of torch's own for good: without a session that watches it returns the same null pointers.
class MetaAllocator final : public c10::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override { return pointer_to(Engine::get().allocate_ghost(bytes)); }
  c10::DeleterFnPtr raw_deleter() const override { return &delete_ghost; }
  void copy_data(void*, const void*, size_t) const override {}
};

void append_shape(const at::Tensor& tensor, std::string& text) {
  if (!text.empty() && text.back() != '>') text += ';';
  text += tensor.defined() && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() ? shape_of(tensor) : "-";
}

}  // namespace

// Null when the storage is no ghost's.
Block* ghost_behind(c10::StorageImpl& storage) {
  const at::DataPtr& pointer = storage._mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &delete_ghost ? static_cast<Block*>(pointer.get_context()) : nullptr;
}

void append_shapes(const c10::IValue& value, std::string& text) {
  if (value.isTensor()) return append_shape(value.toTensor(), text);
  if (value.isTensorList() || value.isOptionalTensorList())
    for (const c10::IValue& item : value.toListRef()) append_shapes(item, text);
}

void Engine::watch_meta() {
  static auto* allocator = new MetaAllocator;
  if (c10::GetAllocator(at::DeviceType::Meta) != allocator)
    c10::SetAllocator(at::DeviceType::Meta, allocator, /*priority=*/100);
  Lock lock(*this);
  watches_meta_.store(active());
}

Block* Engine::allocate_ghost(size_t bytes) {
  if (bytes == 0 || !watches_meta()) return nullptr;
  ThreadState& thread = this_thread();
  int64_t source = thread.depth > 0 ? thread.source : (recorder_.on() ? current_source() : -1);
  Lock lock(*this);
  Block* ghost = new_ghost(bytes);
  ghost_begins(thread, *ghost, source);
  return ghost;
}

Block* Engine::new_ghost(size_t bytes) {
  auto* ghost = new Block;
  ghost->id = books_.next_id();
  ghost->bytes = bytes;
  ghost->index = ghosts_.size();
  ghosts_.push_back(ghost);
  return ghost;
}

void Engine::ghost_begins(ThreadState& thread, Block& ghost, int64_t source) {
  bool inside = thread.depth > 0;
  if (inside) ghost.touched_by = ghost.written_by = thread.serial;
  if (recorder_.on()) recorder_.ghost_allocated(ghost, inside, source);
}

void Engine::ghost_ends(const Block& ghost) {
  if (watches_meta() && recorder_.on()) recorder_.released(ghost, this_thread().depth > 0);
}

void Engine::release_ghost(Block* ghost) {
  Lock lock(*this);
  ghost_ends(*ghost);
  ghosts_.back()->index = ghost->index;
  std::swap(ghosts_[ghost->index], ghosts_.back());
  ghosts_.pop_back();
  delete ghost;
}

// The storage's ghost. It has none yet if it is older than the session, or if a resize gave it its bytes (`is_new`).
Block* Engine::ghost_of(ThreadState& thread, const c10::Storage& storage, bool is_new) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (storage.device_type() != at::DeviceType::Meta || impl.sym_nbytes().is_heap_allocated()) return nullptr;
  Block* ghost = ghost_behind(impl);
  if (ghost != nullptr && ghost->bytes != impl.nbytes()) {
    ghost_ends(*ghost);
    ghost->id = books_.next_id();
    ghost->bytes = impl.nbytes();
    ghost_begins(thread, *ghost, thread.source);
  } else if (ghost == nullptr && impl.nbytes() > 0 && impl._mutable_data_ptr_no_checks().get_context() == nullptr) {
    ghost = new_ghost(impl.nbytes());
    impl.set_data_ptr_noswap(pointer_to(ghost));
    if (is_new)
      ghost_begins(thread, *ghost, thread.source);
    else if (recorder_.on())
      recorder_.ghost_before(*ghost);
  }
  return ghost;
}

void Engine::touch_ghost(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data) {
  Block* ghost = ghost_of(thread, storage, /*is_new=*/false);
  if (ghost == nullptr || !reads_data) return;
  bool first = ghost->touched_by != thread.serial, first_write = write && ghost->written_by != thread.serial;
  ghost->touched_by = thread.serial;
  if (write) ghost->written_by = thread.serial;
  if (first && thread.depth == 1) thread.need_key = mix(thread.need_key, ghost->bytes);
  if ((first || first_write) && records(thread)) recorder_.op_accesses(thread.row, *ghost, write);
}

}  // namespace memfit
