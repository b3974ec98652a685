// Recomputing: storages whose bytes were discarded are made again, by the ops that had made them.
//
// Nothing is locked meanwhile, and nothing of the op that needs them is in use: a re-run is an op like others, whose
// inputs come in or are made again themselves. But it is none of the program's: neither is it recorded, nor does it
// count for an iteration or a plan.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "block.h"

namespace memfit {

class Engine;
struct Session;

class Recomputing {
 public:
  explicit Recomputing(Engine& engine) : engine_(engine) {}

  // What of these can be. They are held, so that they neither go nor are discarded again, and let go of one by one.
  void make(const std::vector<Block*>& held);
  // Those that `select(session)` returns.
  void make_those(const std::function<std::vector<Block*>(Session&)>& select);
  // All of the session's.
  void make_all();

 private:
  bool make(Block& block);
  bool bring_back(Block& block, const c10::Storage& made, uint64_t took_ns);
  void note_failure(Block& block, const std::string& why);

  Engine& engine_;
};

}  // namespace memfit
