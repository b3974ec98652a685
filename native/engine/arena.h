// Arena: the one contiguous reservation that holds everything resident.
#pragma once

#include <cstddef>

#include "block.h"
#include "ranges.h"

namespace memfit {

class Arena {
 public:
  static constexpr size_t kAlignment = 64;  // what torch's own CPU allocator gives: kernels take the same path

  // Reserves address space only; pages become real when they are touched. Raises std::bad_alloc.
  Arena(size_t reserve_bytes, size_t limit_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* base() const { return base_; }
  bool contains(const void* p) const { return p >= base_ && p < base_ + reserved_; }
  // Lower the limit and return the untouched pages beyond it to the system.
  void shrink(size_t limit_bytes);
  // Return a region's pages to the system.
  void drop_pages(const Region* region);

  Ranges ranges;

 private:
  size_t reserved_;
  char* base_;
};

inline char* Block::address() const { return arena->base() + region->offset; }
inline Block* owner_of(const Region* region) { return static_cast<Block*>(region->owner); }

}  // namespace memfit
