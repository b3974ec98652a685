// Swapping by plan: copies that run in lanes beside the ops, and are waited for only when they are late.
//
// A block with a copy under way is active, so that nothing moves it. Out: it stays resident and usable; if an op
// writes to it meanwhile the copy counts for nothing. In: the storage stays guarded until somebody needs it.
#include <algorithm>

#include "engine.h"
#include "lock.h"
#include "pointers.h"

namespace memfit {

// An op begins: do what the plan wants done before it.
void Engine::swap_before_op(uint64_t name_hash) {
  bool was_on_course = swaps_->on_course();
  if (!swaps_->on_op(name_hash)) {
    if (was_on_course) settle_all();  // reactive mode wants to move what the copies hold
    return;
  }
  for (const Swaps::Action& action : swaps_->before()) {
    if (action.kind == Swaps::Action::Kind::kFinishOut)
      finish_out(action.swap);
    else
      start_in(action.swap);
    if (!swaps_) return;  // dropped, for want of room
  }
}

void Engine::swap_after_op() {
  if (!swaps_ || !swaps_->on_course()) return;
  for (uint32_t swap : swaps_->after()) start_out(swap);
}

void Engine::start_out(uint32_t swap) {
  Block* block = swaps_->block_of(swap);
  if (block == nullptr || block->copy || !block->may_move() || block->arena != arena_ || !block->dirty) return;
  StorageRef storage = block->storage.lock();
  if (!storage) return;
  bool ours = points_to(*storage, *block);
  graveyard_.push_back(std::move(storage));
  if (!ours) return;
  release_frozen_slot(*block);
  if (block->slot == nullptr) {
    try {
      block->slot = tier_->reserve(block->bytes);
    } catch (const TierFailure&) {
      return;  // it stays; if it must leave after all, that says why it can't
    }
    block->tier = tier_;
  }
  block->dirty = false;  // from here on: an op that writes to it sets it again
  begin_copy(*block, Copy::Direction::kOut, block->region, swap);
}

void Engine::begin_copy(Block& block, Copy::Direction direction, Region* region, uint32_t swap) {
  block.copy = std::make_shared<Copy>(Copy{direction, block.tier, block.slot, arena_->base() + region->offset, block.bytes,
                                           region, static_cast<int64_t>(swap), {}, {}, {}, false});
  ++block.active;
  copying_.push_back(&block);
  lane(direction).push(block.copy);
}

Lane& Engine::lane(Copy::Direction direction) {
  std::unique_ptr<Lane>& lane = lanes_[direction == Copy::Direction::kIn];
  if (!lane) lane = std::make_unique<Lane>();
  return *lane;
}

// The block's bytes are to be out of the arena now.
void Engine::finish_out(uint32_t swap) {
  Block* block = swaps_->block_of(swap);
  if (block == nullptr) return;
  if (block->copy && block->copy->direction == Copy::Direction::kOut) settle(*block);
  if (block->dirty || block->slot == nullptr || !block->may_move() || block->arena != arena_) return;
  StorageRef storage = block->storage.lock();
  if (!storage) return;
  if (points_to(*storage, *block)) {
    leave_arena(*block, *storage);
    ++stats_.swaps;
  }
  graveyard_.push_back(std::move(storage));
}

void Engine::start_in(uint32_t swap) {
  Plan* plan = arena_->plan();
  Block* block = swaps_->block_of(swap);
  bool comes = block != nullptr && !block->resident() && !block->copy && block->slot != nullptr;
  if (block != nullptr) swaps_->arrival(*block) = swaps_->swap(swap).take;
  Region* region = nullptr;
  if (comes)
    region = plan->take(round_up(block->bytes, Arena::kAlignment), block, swap);
  else
    plan->skip(swap);
  if (region == nullptr) return;  // it is brought in when it is needed
  note_peaks();
  begin_copy(*block, Copy::Direction::kIn, region, swap);
}

// Wait for the block's copy to end, and draw the conclusions. True if it has brought the block in.
bool Engine::settle(Block& block) {
  std::shared_ptr<Copy> copy = std::move(block.copy);
  block.copy.reset();
  wait_for(*copy);
  copying_.erase(std::find(copying_.begin(), copying_.end(), &block));
  --block.active;
  bool failed = !copy->error.empty();
  stats_.failed_copies += failed;
  uint64_t& ns = copy->direction == Copy::Direction::kOut ? stats_.out_ns : stats_.in_ns;
  ns += static_cast<uint64_t>(std::chrono::nanoseconds(copy->ended - copy->began).count());
  if (copy->direction == Copy::Direction::kOut) {
    if (failed)
      block.dirty = true;
    else
      stats_.bytes_out += block.bytes;
    return false;
  }
  StorageRef storage = block.storage.lock();
  if (failed || !storage) {
    arena_->give_back(copy->region);
  } else {
    come_in(block, copy->region, *storage);
    ++stats_.prefetches;
  }
  if (storage) graveyard_.push_back(std::move(storage));
  return block.resident();
}

void Engine::wait_for(const Copy& copy) {
  Lane& lane = this->lane(copy.direction);
  auto began = Copy::Clock::now();
  bool late = !lane.is_done(copy);
  if (late) lane.wait(copy);
  auto ended = late ? Copy::Clock::now() : began;
  stats_.stall_ns += static_cast<uint64_t>(std::chrono::nanoseconds(ended - began).count());
  timeline_.copied(copy, began, ended);
}

void Engine::settle_all() {
  while (!copying_.empty()) settle(*copying_.back());
}

void Engine::end_swapping() {
  settle_all();
  if (!swaps_) return;
  swaps_.reset();
  for (Block* block : blocks_) block->swapped = -1;
}

void Engine::start_timeline() {
  Lock lock(*this);
  timeline_.start();
}

Timeline Engine::stop_timeline() {
  Lock lock(*this);
  timeline_.stop();
  return std::move(timeline_);
}

// A place in the plan's zone for one that was to be there already.
Region* Engine::place_late(Block& block) {
  Plan* plan = arena_->plan();
  if (plan == nullptr || !swaps_ || block.swapped < 0) return nullptr;
  return plan->take_late(swaps_->arrival(block), round_up(block.bytes, Arena::kAlignment), &block);
}

}  // namespace memfit
