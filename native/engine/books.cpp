#include "books.h"

#include <algorithm>

#include "pointers.h"
#include "values.h"

namespace memfit {

void Books::begin_session() {
  ++session_;
  for (Block* left_over : blocks_) left_over->position = left_over->forecast = -1;
}

Block* Books::add(size_t bytes, Device& device) {
  auto* block = new Block;
  block->id = next_id();
  block->session = session_;
  block->bytes = bytes;
  block->device = &device;
  block->index = blocks_.size();
  blocks_.push_back(block);
  return block;
}

void Books::remove(Block* block) {
  blocks_.back()->index = block->index;
  std::swap(blocks_[block->index], blocks_.back());
  blocks_.pop_back();
  if (block->discarded) no_longer_discarded(*block);
  Values::end(*block);
  if (block->extent != nullptr) block->tier->release(block->extent);
  block->extent = nullptr;
  if (block->active > 0 || block->aside > 0)
    block->dead = true;
  else
    delete block;
}

void Books::hold(const std::vector<Block*>& blocks) {
  for (Block* block : blocks) ++block->active;
}

bool Books::let_go(Block& block) const {
  block.idle_since = now_;
  if (--block.active > 0 || block.aside > 0) return false;
  const bool is_there = !block.dead;
  if (!is_there) delete &block;
  return is_there;
}

void Books::discarded(Block& block, std::unique_ptr<Discarded> discarded) {
  std::vector<std::shared_ptr<Value>> sources = std::move(discarded->sources);
  discarded->sources.clear();
  block.discarded = std::move(discarded);
  depends_on(block, std::move(sources));
  ++discarded_;
}

void Books::depends_on(Block& block, std::vector<std::shared_ptr<Value>> sources) {
  for (const auto& source : block.discarded->sources) {
    auto& dependents = source->dependents;
    dependents.erase(std::remove(dependents.begin(), dependents.end(), &block), dependents.end());
  }
  for (const auto& source : sources) source->dependents.push_back(&block);
  block.discarded->sources = std::move(sources);
}

void Books::no_longer_discarded(Block& block) {
  depends_on(block, {});
  for (StorageRef& kept : block.discarded->keeps) bury(std::move(kept));
  block.discarded.reset();
  --discarded_;
}

Block* Books::find(const c10::StorageImpl& storage) const {
  const at::DataPtr& pointer = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == &delete_by_block) return static_cast<Block*>(pointer.get_context());
  return pointer.get_deleter() == &delete_by_address ? find_at(pointer.get_context()) : nullptr;
}

Block* Books::find_at(const void* address) const {
  auto it = by_address_.find(address);
  return it == by_address_.end() ? nullptr : it->second;
}

void Books::attach(Block& block, const c10::Storage& storage) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  if (block.storage_address == impl) return;
  block.storage = storage.getWeakStorageImpl();
  block.storage_address = impl;
  const at::DataPtr& pointer = impl->_mutable_data_ptr_no_checks();
  if (pointer.get_deleter() == &delete_by_address) put_behind(*impl, pointer.get(), block);
}

void Books::arrives(Block& block, c10::StorageImpl& storage) {
  arrives(block);
  set_present(storage, block);
}

void Books::give_up(Block& block, bool with_pages) {
  leaves(block);
  if (block.mapped) return block.mapped.reset();
  if (with_pages)
    block.arena->give_back_with_pages(block.region);
  else
    block.arena->give_back(block.region);
  block.region = nullptr;
}

}  // namespace memfit
