// LastResorts: the ways that are left when a storage finds no place.
#pragma once

#include "block.h"

namespace memfit {

class LastResorts {
 public:
  virtual ~LastResorts() = default;
  // Wait for the block's copy. True if it has brought the block in.
  virtual bool settle(Block& block) = 0;
  // A place in the plan's zone for one that was to be there already.
  virtual Region* place_late(Block& block) = 0;
  // A place of so many bytes there for one that the plan does not know, until it wants them. nullptr: none.
  virtual Region* lodge(Block& block, size_t bytes) = 0;
  // The plan's zone becomes ordinary space. False when there is none, or it stays for this thread's op.
  virtual bool drop() = 0;
};

}  // namespace memfit
