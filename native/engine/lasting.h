// Lasting: what outlives sessions, as storages and threads do.
#pragma once

#include <mutex>

#include "books.h"
#include "collectives.h"
#include "failure.h"
#include "flags.h"
#include "gate.h"
#include "ghosts.h"
#include "scratch.h"
#include "stress.h"
#include "turns.h"

namespace memfit {

struct Lasting {
  std::mutex mutex;  // guards all of it, and the session
  Flags flags;
  Books books;
  Turns turns{mutex};
  Scratch scratch;
  Collectives collectives{mutex, books, turns, scratch};
  Ghosts ghosts{books};
  Gate gate;
  Failure last_failure;
  Stress stress = Stress::kNone;
  bool captures = false;  // what all ops do is kept as recipes
};

}  // namespace memfit
