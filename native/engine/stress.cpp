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
  if (memory_.device->is_asynchronous()) return;
  for (Block* block : std::vector<Block*>(books_.all()))
    if (block->arena == memory_.arena && residency_.may_move(*block)) press_out(*block);
  if (memory_.arena->plan() == nullptr) memory_.arena->trim_shelf(0);
}

void Engine::press_out(Block& block) {
  char* before = block.address();
  Region* region = block.region;
  size_t from = region->offset, size = block.bytes;
  try {
    bool moves = stress_ == Stress::kMove && !block.small;  // a small one would end up off the shelf, in the way
    if (moves ? !residency_.relocate(block, from, region->end()) : !moves_.evict(block)) return;
  } catch (const TierFailure&) {
    return;
  }
  if (memory_.arena->ranges.hole_at(from) != nullptr) std::memset(before, kGarbage, size);
}

}  // namespace memfit
