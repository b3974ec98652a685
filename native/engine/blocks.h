// Blocks: one is made for a storage of the session's, and removed.
#pragma once

#include <cstddef>

#include "books.h"
#include "memory.h"
#include "planned.h"
#include "shelf.h"

namespace memfit {

class Blocks {
 public:
  Blocks(Books& books, const Memory& memory, const Shelf& shelf, Planned& planned)
      : books_(books), memory_(memory), shelf_(shelf), planned_(planned) {}

  // It has no bytes yet.
  Block* make(size_t bytes) {
    Block* block = books_.add(bytes, *memory_.device);
    block->small = shelf_.is_small(bytes);
    return block;
  }
  void remove(Block* block) {
    planned_.on_release(*block);
    books_.remove(block);
  }

 private:
  Books& books_;
  const Memory& memory_;
  const Shelf& shelf_;
  Planned& planned_;
};

}  // namespace memfit
