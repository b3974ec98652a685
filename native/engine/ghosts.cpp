#include "ghosts.h"

#include <ATen/core/Tensor.h>

#include "engine.h"
#include "hash.h"
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

Block* Ghosts::allocate(ThreadState& thread, size_t bytes, int64_t source) {
  Block* ghost = add(bytes);
  begins(thread, *ghost, source);
  return ghost;
}

void Ghosts::release(Block* ghost) {
  ends(*ghost);
  ghosts_.back()->index = ghost->index;
  std::swap(ghosts_[ghost->index], ghosts_.back());
  ghosts_.pop_back();
  delete ghost;
}

void Ghosts::watch() {
  static auto* allocator = new MetaAllocator;
  if (c10::GetAllocator(at::DeviceType::Meta) != allocator)
    c10::SetAllocator(at::DeviceType::Meta, allocator, /*priority=*/100);
}

void Ghosts::record_all() const {
  for (const Block* ghost : ghosts_) recorder_.load()->ghost_before(*ghost);
}

Block* Ghosts::add(size_t bytes) {
  auto* ghost = new Block;
  ghost->id = books_.next_id();
  ghost->bytes = bytes;
  ghost->index = ghosts_.size();
  ghosts_.push_back(ghost);
  return ghost;
}

Recorder* Ghosts::recording() const {
  Recorder* recorder = recorder_.load();
  return recorder != nullptr && recorder->on() ? recorder : nullptr;
}

void Ghosts::begins(ThreadState& thread, Block& ghost, int64_t source) {
  bool inside = thread.depth > 0;
  if (inside) ghost.touched_by = ghost.written_by = thread.serial;
  if (Recorder* recorder = recording()) recorder->ghost_allocated(ghost, inside, source);
}

void Ghosts::ends(const Block& ghost) {
  if (Recorder* recorder = recording()) recorder->released(ghost, this_thread().depth > 0);
}

Block* Ghosts::of(ThreadState& thread, const c10::Storage& storage, bool is_new) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  if (storage.device_type() != at::DeviceType::Meta || impl.sym_nbytes().is_heap_allocated()) return nullptr;
  Block* ghost = ghost_behind(impl);
  if (ghost != nullptr && ghost->bytes != impl.nbytes()) {
    ends(*ghost);
    ghost->id = books_.next_id();
    ghost->bytes = impl.nbytes();
    begins(thread, *ghost, thread.source);
  } else if (ghost == nullptr && impl.nbytes() > 0 && impl._mutable_data_ptr_no_checks().get_context() == nullptr) {
    ghost = add(impl.nbytes());
    impl.set_data_ptr_noswap(pointer_to(ghost));
    if (is_new)
      begins(thread, *ghost, thread.source);
    else if (Recorder* recorder = recording())
      recorder->ghost_before(*ghost);
  }
  return ghost;
}

void Ghosts::touch(ThreadState& thread, const c10::Storage& storage, bool write, bool reads_data) {
  Block* ghost = of(thread, storage, /*is_new=*/false);
  if (ghost == nullptr || !reads_data) return;
  bool first = ghost->touched_by != thread.serial, first_write = write && ghost->written_by != thread.serial;
  ghost->touched_by = thread.serial;
  if (write) ghost->written_by = thread.serial;
  if (first && thread.depth == 1) thread.need_key = mix(thread.need_key, ghost->bytes);
  Recorder* recorder = recording();
  if ((first || first_write) && recorder != nullptr && recorder->records(thread)) recorder->op_accesses(thread.row, *ghost, write);
}

}  // namespace memfit
