// The shelf: where small storages live, and large ones that must stay where they are.
//
// Sizes, lengths, offsets, seeds and scalars are read through raw pointers that nobody announces, and four bytes that
// cannot move cut the arena in two. So they lie at its low end, among themselves. They leave it only while no op runs,
// and only if there is no other way to make room.
#include <algorithm>

#include "engine.h"
#include "lock.h"
#include "pointers.h"

namespace memfit {

namespace {

constexpr size_t kSmall = size_t{16} << 10;       // bytes
constexpr size_t kSmallShare = 256;               // nor is a storage small that is more than this part of the budget
constexpr size_t kSteps = 512;                    // the shelf grows by such a part of the budget,
constexpr size_t kLargestStep = size_t{256} << 10;  // in bytes at most

}  // namespace

size_t Engine::shelf_step() const {
  return arena_->round(std::min(arena_->ranges.limit() / kSteps + 1, kLargestStep));
}

// Bytes that are kept free for it, so that not every scalar has to push something large aside; an op that needs
// them has them.
size_t Engine::shelf_slack() const { return stats_.budget == 0 ? 0 : arena_->round(arena_->ranges.limit() / kSmallShare); }

// Without a budget nothing is ever in the way.
bool Engine::is_small(size_t bytes) const {
  return stats_.budget != 0 && bytes <= std::min(kSmall, arena_->ranges.limit() / kSmallShare);
}

bool Engine::may_move(const Block& block) const { return block.is_idle() && (!block.small || turns_.none_runs()); }

// The lowest place on the shelf. nullptr when it would have to grow and what lies above it cannot make way (or only by
// leaving the arena, where that is not wanted: `evicts`).
Region* Engine::place_on_shelf(Block& block, bool evicts) {
  Region* region = arena_->take_on_shelf(block.bytes, &block);
  if (region == nullptr || region->end() <= arena_->shelf_end() || grow_shelf(region->end(), evicts)) return region;
  arena_->leave_shelf(region);
  scattered_ |= block.small;
  return nullptr;
}

bool Engine::grow_shelf(size_t needed, bool evicts) {
  const size_t end = std::min(round_up(needed, shelf_step()), arena_->ranges.limit());
  if (end < needed) return false;
  Region *first = nullptr, *last = nullptr;
  for (Region* r = arena_->ranges.first(); r != nullptr && r->offset < end; r = r->next) {
    if (r->offset < arena_->shelf_end()) continue;
    // What a plan has packed there is meant to stay.
    if (!r->is_free() && (arena_->plan() != nullptr || !may_move(*owner_of(r)))) return false;
    if (first == nullptr) first = r;
    last = r;
  }
  try {
    if (first != nullptr && !clear(first, last, evicts)) return false;
  } catch (const TierFailure&) {
    return false;
  }
  arena_->grow_shelf(end, &shelf_owner_);
  return true;
}

// Small storages that came to lie elsewhere, for want of room on the shelf or by a plan that was dropped.
void Engine::gather_small() {
  if (!scattered_ || !turns_.none_runs() || arena_->plan() != nullptr) return;
  scattered_ = false;
  for (Block* block : blocks_) {
    if (!block->small || !block->resident() || block->arena != arena_ || arena_->on_shelf(block->region)) continue;
    Region* region = may_move(*block) ? place_on_shelf(*block, /*evicts=*/true) : nullptr;
    if (region == nullptr)
      scattered_ = true;
    else
      move_to(*block, region);
  }
}

// Those for which the shelf could not grow, since the op's own storages lie above it.
void Engine::evict_scattered() {
  if (!scattered_ || !turns_.none_runs()) return;
  for (Block* block : std::vector<Block*>(blocks_))
    if (block->small && block->resident() && block->arena == arena_ && !arena_->on_shelf(block->region) && may_move(*block))
      evict(*block);
}

// It must not move from now on: it had better not lie in the way. Its one user is the caller.
void Engine::shelve(Block& block) {
  bool stuck = !block.resident() || block.arena != arena_ || block.active != 1 || block.pinned || block.held || !block.attached();
  if (stuck || arena_->on_shelf(block.region) || (block.small && !turns_.none_runs()) || arena_->plan() != nullptr) return;
  if (Region* region = place_on_shelf(block, /*evicts=*/true)) move_to(block, region);
}

// The last resort of an op that has not started: idle small storages leave too. False when that gives back nothing.
bool Engine::clear_shelf() {
  const size_t before = arena_->shelf_end();
  if (turns_.none_runs())
    for (Block* block : std::vector<Block*>(blocks_))
      if (block->resident() && block->arena == arena_ && arena_->on_shelf(block->region) && may_move(*block))
        evict(*block);
  if (turns_.none_runs()) tidy_shelf();
  return arena_->shelf_end() < before;
}

// The op's own storages slide down to where the shelf was. False when that gives back nothing.
bool Engine::take_shelf(const ThreadState& thread) {
  if (!clear_shelf()) return false;
  consolidate(thread.touched);
  return true;
}

// The limit is another one: what counts as small is too.
void Engine::sort_by_size() {
  for (Block* block : std::vector<Block*>(blocks_)) {
    if (block->session == session_) block->small = is_small(block->bytes);
    if (!block->resident() || block->arena != arena_) continue;
    scattered_ |= block->small;
    if (!block->small && arena_->on_shelf(block->region) && may_move(*block)) evict(*block);
  }
  gather_small();
  tidy_shelf();
  grow_shelf(arena_->shelf_end() + shelf_slack(), /*evicts=*/false);
}

// A plan's zone begins where the shelf ends: what recurs is to lie lowest on it.
void Engine::sort_shelf(const std::unordered_set<uint64_t>& stays) {
  gather_small();
  for (Block* block : std::vector<Block*>(blocks_)) {
    if (!block->resident() || block->arena != arena_ || !arena_->on_shelf(block->region) || !may_move(*block)) continue;
    if (stays.count(block->id) != 0) continue;
    Region* region = arena_->ranges.take(block->bytes, block);
    if (region == nullptr || !move_to(*block, region)) evict(*block);
    scattered_ = true;
  }
  tidy_shelf();
  gather_small();
  arena_->trim_shelf(0, &shelf_owner_);
}

// What is on the shelf moves to its low end, and the rest of it is given back.
void Engine::tidy_shelf() {
  for (Region* r = arena_->first_on_shelf(); r != nullptr; r = r->next) {
    const Region* hole = r->prev;
    if (r->is_free() || hole == nullptr || !hole->is_free() || !may_move(*owner_of(r))) continue;
    Block& block = *owner_of(r);
    const size_t target = hole->offset;
    move_down(arena_->shelf(), block, target);
    r = block.region;
  }
  arena_->trim_shelf(0, &shelf_owner_);
}

}  // namespace memfit
