#include "restoring.h"

#include <algorithm>
#include <utility>

#include "failure.h"
#include "pointers.h"

namespace memfit {

namespace {

// torch's errors carry the native stack with them.
std::string words_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace

// Storages in the arena can stay there if memory is short: the others come first. The rest comes in the order of
// addresses, so that whole pages are given back on the way.
void Restoring::restore_all(Memory& memory, Restored& restored) {
  memory.arena->dissolve_shelf(tell_owner);  // what it kept free is a page's too
  memory.arena->release_free_pages();
  std::vector<Block*> blocks = books_.all();
  auto place = [](const Block* block) { return block->resident() ? block->address() : nullptr; };
  std::sort(blocks.begin(), blocks.end(), [&](const Block* a, const Block* b) { return place(a) < place(b); });
  for (Block* block : blocks)
    if (!restore(*block, restored)) ++restored.left;
  memory.arena->release_free_pages();
}

bool Restoring::restore(Block& block, Restored& restored) {
  bool movable = block.attached() && block.active == 0 && !block.pinned && !block.held;
  if (block.resident() && !movable) return false;
  Books::StorageRef storage = reference_to_storage(block);
  if (!storage) return !block.resident() || block.storage.expired();
  books_.bury(storage);
  if (block.resident() && movable_storage(block) == nullptr) return false;
  if (!move_to_ordinary(block, std::move(storage), restored)) return false;
  if (block.mapped)
    block.mapped.reset();
  else if (block.resident())
    block.arena->give_back_with_pages(std::exchange(block.region, nullptr));
  ++restored.count;
  books_.remove(&block);
  return true;
}

bool Restoring::move_to_ordinary(Block& block, Books::StorageRef storage, Restored& restored) {
  try {
    at::DataPtr memory = block.device->ordinary().allocate(block.bytes);
    if (block.resident()) {
      block.device->copy(memory.get(), block.address(), block.bytes);
      books_.leaves(block);
    } else {
      block.read_back(static_cast<char*>(memory.get()));
    }
    storage->_mutable_data_ptr_no_checks().release_context();
    storage->set_data_ptr_noswap(std::move(memory));
    open_again(*storage);
    return true;
  } catch (const std::exception& error) {
    if (!block.resident()) {
      const std::string why = words_of(error);
      set_unavailable(block, kLost + why);
      restored.lost.emplace_back(block.tier.get(), format_bytes(block.bytes) + ": " + why);
    }
    return false;
  }
}

void Restoring::let_go(Block& block) {
  Restored ignored;
  if (books_.let_go(block)) restore(block, ignored);
}

}  // namespace memfit
