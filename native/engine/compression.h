// Compression: a medium whose bytes lie in another one, smaller where that pays.
//
// What is written is cut into packets of 256 KiB, each packed by itself. A packet lies where its bytes would lie if none
// were packed, so that the worst case always fits; only what is left of it is written and read. A table in memory says
// how each is packed, how long it is and what its checksum is: a forked child, which has a copy of the table, can read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tier.h"

namespace memfit {

class Compressing : public Medium {
 public:
  // What has been written to the other medium and read from it so far.
  virtual uint64_t bytes_stored() const = 0;
  virtual uint64_t bytes_loaded() const = 0;
  // What lies in the other medium of the bytes at [offset, offset + size).
  virtual size_t stored_at(size_t offset, size_t size) const = 0;
  // In an iteration ops have waited so long for copies, which have taken so long.
  virtual void iteration_ends(uint64_t waited_ns, uint64_t copied_ns) = 0;
};

std::unique_ptr<Compressing> with_compression(std::unique_ptr<Medium> inner);

}  // namespace memfit
