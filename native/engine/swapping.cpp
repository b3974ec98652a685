// Swapping by plan: copies that run in lanes beside the ops, and are waited for only when they are late.
//
// A block with a copy under way is active, so that nothing moves it. Out: it stays resident and usable; if an op
// writes to it meanwhile the copy counts for nothing. In: the storage stays guarded until somebody needs it.
#include <algorithm>
#include <cerrno>
#include <system_error>

#include "engine.h"
#include "lock.h"
#include "pointers.h"

namespace memfit {

// An op begins: do what the plan wants done before it.
void Engine::swap_before_op(ThreadState& thread, uint64_t name_hash) {
  bool was_on_course = swaps_->on_course();
  if (!swaps_->on_op(name_hash)) {
    if (was_on_course) settle_all();  // reactive mode wants to move what the copies hold
    return;
  }
  thread.course = course_;
  thread.planned_op = swaps_->op();
  for (const Swaps::Action& action : swaps_->before()) {
    if (action.kind == Swaps::Action::Kind::kFinishOut)
      finish_out(action.swap);
    else
      start_in(action.swap);
    if (!swaps_) return;  // dropped, for want of room
  }
}

// Ops of several threads need not end in the order in which they began, nor in the iteration.
void Engine::swap_after_op(const ThreadState& thread) {
  if (!swaps_ || !swaps_->on_course() || thread.course != course_) return;
  for (uint32_t swap : swaps_->after(thread.planned_op)) start_out(swap);
}

void Engine::start_out(uint32_t swap) {
  Block* block = swaps_->block_of(swap);
  if (block == nullptr || block->copy || !block->is_idle() || block->arena != memory_.arena || !block->dirty) return;
  if (movable_storage(*block) == nullptr) return;
  moves_.release_frozen_slot(*block);
  if (block->slot == nullptr) {
    try {
      block->slot = memory_.tier->reserve(block->bytes);
    } catch (const TierFailure&) {
      return;  // it stays; if it must leave after all, that says why it can't
    }
    block->tier = memory_.tier;
  }
  block->dirty = false;  // from here on: an op that writes to it sets it again
  begin_copy(*block, Copy::Direction::kOut, block->region, swap);
}

void Engine::begin_copy(Block& block, Copy::Direction direction, Region* region, uint32_t swap) {
  block.copy = std::make_shared<Copy>();
  *block.copy = {direction, block.tier, block.slot, memory_.arena->base() + region->offset, block.bytes, region, swap};
  block.copy->takes_print = !memory_.device->is_asynchronous();
  ++block.active;
  copying_.push_back(&block);
  lane(direction).push(block.copy);
}

// Before anything depends on them: a thread cannot always be had. False if so.
bool Engine::make_lanes() {
  try {
    if (memory_.tier->refuses_lanes()) throw std::system_error(EAGAIN, std::generic_category());
    for (std::unique_ptr<Lane>& lane : lanes_)
      if (!lane) lane = memory_.device->make_lane(*memory_.tier);
    return true;
  } catch (const std::exception&) {
    ++stats_.lane_failures;
    return false;
  }
}

Lane& Engine::lane(Copy::Direction direction) { return *lanes_[direction == Copy::Direction::kIn]; }

// The block's bytes are to be out of the arena now.
void Engine::finish_out(uint32_t swap) {
  Block* block = swaps_->block_of(swap);
  if (block == nullptr) return;
  if (block->copy && block->copy->direction == Copy::Direction::kOut) settle(*block);
  if (!block->dirty && block->slot != nullptr && residency_.may_move(*block)) moves_.mend_unseen_write(*block);
  if (block->dirty || block->slot == nullptr || !residency_.may_move(*block) || block->arena != memory_.arena) return;
  if (c10::StorageImpl* storage = movable_storage(*block)) {
    moves_.leave_arena(*block, *storage);
    ++stats_.swaps;
  }
}

void Engine::start_in(uint32_t swap) {
  Plan* plan = memory_.arena->plan();
  Block* block = swaps_->block_of(swap);
  bool comes = block != nullptr && !block->resident() && !block->copy && block->slot != nullptr;
  if (block != nullptr) swaps_->arrival(*block) = swaps_->swap(swap).take;
  Region* region = nullptr;
  if (comes)
    region = plan->take(memory_.arena->round(block->bytes), block, swap);
  else
    plan->skip(swap);
  if (region == nullptr) return;  // it is brought in when it is needed
  moves_.note_peaks();
  try {
    memory_.arena->back(region);
  } catch (const TierFailure&) {
    return;  // likewise
  }
  begin_copy(*block, Copy::Direction::kIn, region, swap);
}

// Wait for the block's copy to end, and draw the conclusions. True if it has brought the block in.
bool Engine::settle(Block& block) {
  std::shared_ptr<Copy> copy = std::move(block.copy);
  block.copy.reset();
  lane(copy->direction).wait(*copy);
  copy->waited_by = timeline_.op();
  settled_.push_back(copy);
  account();
  copying_.erase(std::find(copying_.begin(), copying_.end(), &block));
  --block.active;
  bool failed = !copy->error.empty();
  block.print = copy->print;
  stats_.failed_copies += failed;
  if (copy->direction == Copy::Direction::kOut) {
    if (failed)
      block.dirty = true;
    else
      stats_.bytes_out += block.bytes;
    return false;
  }
  c10::StorageImpl* storage = storage_behind(block);
  if (failed || storage == nullptr) {
    memory_.arena->give_back(copy->region);
  } else {
    moves_.come_in(block, copy->region, *storage);
    ++stats_.prefetches;
  }
  return block.resident();
}

// Write the times of copies that have been waited for into the books, as far as they are known.
void Engine::account() {
  size_t known = 0;
  for (; known < settled_.size(); ++known) {
    Copy& copy = *settled_[known];
    if (!lane(copy.direction).knows_times(copy)) break;
    (copy.direction == Copy::Direction::kOut ? stats_.out_ns : stats_.in_ns) += static_cast<uint64_t>(copy.ended - copy.began);
    stats_.stall_ns += static_cast<uint64_t>(copy.waited_until - copy.waited_from);
    timeline_.copied(copy);
  }
  settled_.erase(settled_.begin(), settled_.begin() + static_cast<std::ptrdiff_t>(known));
}

void Engine::settle_all() {
  while (!copying_.empty()) settle(*copying_.back());
}

void Engine::end_swapping() {
  settle_all();
  if (!settled_.empty()) memory_.device->finish();
  account();
  ++course_;
  if (!swaps_) return;
  swaps_.reset();
  for (Block* block : books_.all()) block->swapped = -1;
}

void Engine::start_timeline() {
  Lock lock(*this);
  if (!governs()) return;
  timeline_.stop();
  restart_clock();
  timeline_.start();
}

Timeline Engine::stop_timeline() {
  Lock lock(*this);
  if (!settled_.empty()) memory_.device->finish();
  account();
  timeline_.stop();
  timeline_.resolve(*memory_.device);
  return std::move(timeline_);
}

// A place in the plan's zone for one that was to be there already.
Region* Engine::place_late(Block& block) {
  Plan* plan = memory_.arena->plan();
  if (plan == nullptr || !swaps_ || block.swapped < 0) return nullptr;
  return plan->take_late(swaps_->arrival(block), memory_.arena->round(block.bytes), &block);
}

}  // namespace memfit
