#include "stress.h"

#include <string>
#include <vector>

namespace memfit {

namespace {

constexpr char kGarbage = '\xC7';  // no size, no index and no sum comes out right with it

}  // namespace

void Pressing::press_out_all(Stress stress) {
  if (stress != Stress::kNone) memory_.arena->check();
  if ((stress != Stress::kEvict && stress != Stress::kMove) || memory_.device->is_asynchronous()) return;
  for (Block* block : std::vector<Block*>(books_.all()))
    if (block->arena == memory_.arena && residency_.may_move(*block)) press_out(*block, stress);
  if (memory_.arena->plan() == nullptr) memory_.arena->trim_shelf(0);
}

void Pressing::discard_all(Stress stress) {
  if (stress != Stress::kRecompute) return;
  for (Block* block : std::vector<Block*>(books_.all())) {
    if (!memory_.holds(*block)) continue;
    char* before = block->address();
    const size_t from = block->region->offset;
    if (discarding_.discard(*block, Discarding::By::kStress)) leave_garbage(before, from, block->bytes);
  }
}

void Pressing::press_out(Block& block, Stress stress) {
  char* before = block.address();
  Region* region = block.region;
  size_t from = region->offset, size = block.bytes;
  try {
    bool moves = stress == Stress::kMove && !block.small;  // a small one would end up off the shelf, in the way
    if (moves ? !residency_.relocate(block, from, region->end()) : !moves_.evict(block)) return;
  } catch (const TierFailure&) {
    return;
  }
  leave_garbage(before, from, size);
}

// Unless something else lies there already.
void Pressing::leave_garbage(char* where, size_t offset, size_t bytes) const {
  if (memory_.arena->ranges.hole_at(offset) == nullptr) return;
  const std::string garbage(bytes, kGarbage);
  memory_.device->copy(where, garbage.data(), bytes);
}

}  // namespace memfit
