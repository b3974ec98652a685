// Stress, for tests: whatever may move does, before every op, and garbage is left where it was. A raw pointer that
// somebody has kept, or a write that nobody has seen, is then a wrong number at once and not one day.
#include <cstring>

#include "engine.h"
#include "lock.h"

namespace memfit {

namespace {

constexpr int kGarbage = 0xC7;  // no size, no index and no sum comes out right with it

}  // namespace

void Engine::set_stress(Stress stress) {
  Lock lock(*this);
  stress_ = stress;
}

void Engine::press_out_all() {
  if (device_->is_asynchronous()) return;
  for (Block* block : std::vector<Block*>(blocks_))
    if (block->arena == arena_ && may_move(*block)) press_out(*block);
  if (arena_->plan() == nullptr) arena_->trim_shelf(0, &shelf_owner_);
}

void Engine::press_out(Block& block) {
  char* before = block.address();
  Region* region = block.region;
  size_t from = region->offset, size = block.bytes;
  try {
    bool moves = stress_ == Stress::kMove && !block.small;  // a small one would end up off the shelf, in the way
    if (moves ? !relocate(block, from, region->end()) : !evict(block)) return;
  } catch (const TierFailure&) {
    return;
  }
  if (arena_->ranges.hole_at(from) != nullptr) std::memset(before, kGarbage, size);
}

}  // namespace memfit
