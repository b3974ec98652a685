// Restoring: storages get ordinary memory of their own again, when their session ends or later.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "books.h"
#include "memory.h"

namespace memfit {

// Those that were given it, those whose bytes stay where they are, and why some could not be read from their tier.
struct Restored {
  size_t count = 0;
  size_t left = 0;
  std::vector<std::pair<const Tier*, std::string>> lost;

  // Why one could not be restored.
  std::string why() const { return lost.empty() ? "no memory" : lost.front().second; }
};

class Restoring {
 public:
  explicit Restoring(Books& books) : books_(books) {}

  // All those there are, of whatever session. `memory` is that of the session that ends.
  void restore_all(Memory& memory, Restored& restored);
  // False when its bytes must stay where they are, or are lost.
  bool restore(Block& block, Restored& restored);
  // An op or a hold of no session lets go of it: what waited for that is done.
  void let_go(Block& block);

 private:
  bool move_to_ordinary(Block& block, Books::StorageRef storage, Restored& restored);

  Books& books_;
};

}  // namespace memfit
