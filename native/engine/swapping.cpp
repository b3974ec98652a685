// The copies that a plan wants, before an op and after it.
//
// Out: the block stays resident and usable; if an op writes to it meanwhile the copy counts for nothing. In: the storage
// stays guarded until somebody needs it.
#include <algorithm>

#include "planned.h"
#include "pointers.h"

namespace memfit {

namespace {

constexpr size_t kStrayed = 32;  // ops in a row that are none of the plan's, after which nothing is on its way any more

}  // namespace

void Planned::before_op(ThreadState& thread, uint64_t identity) {
  if (!stream_) return;
  const std::optional<size_t> first = stream_->on_op(identity);
  if (!first) {
    if (stream_->strayed() == kStrayed) copies_.settle_all();  // reactive mode wants to move what the copies hold
    return;
  }
  const size_t op = stream_->op();
  for (size_t missing = *first; missing < op && stream_; ++missing) pass_by(missing);
  if (stream_) begin_op(thread, op);
}

void Planned::begin_op(ThreadState& thread, size_t op) {
  memory_.arena->plan()->op_begins(op);
  thread.course = course_;
  thread.planned_op = op;
  thread.captures = remakings_ && remakings_->is_kept(op);
  act_before(op);
}

bool Planned::lets_pass(uint64_t identity) const {
  if (!stream_ || !stream_->begun()) return true;
  if (!deferred_.empty() || !stream_->comes_next(identity) || stream_->next_own() != stream_->next()) return false;
  const size_t op = stream_->next();
  if (remakings_ && remakings_->is_trial_due(op)) return false;
  return swaps_->before(op).empty() && !swaps_->maps_any(op);
}

// An op of the plan that does not come. Copies that it was to begin do; nothing is dropped, since nothing brings it back.
void Planned::pass_by(size_t op) {
  memory_.arena->plan()->op_begins(op);
  act_before(op);
  if (swaps_) act_after(op);
}

void Planned::act_before(size_t op) {
  if (deferred_.empty() && swaps_->before(op).empty()) return;
  const Together together(*memory_.device);
  if (!deferred_.empty()) start_deferred();
  for (const Swaps::Action& action : swaps_->before(op)) {
    if (action.kind == Swaps::Action::Kind::kFinishOut)
      finish_out(action.swap);
    else
      start_in(action.swap);
    if (!swaps_) return;  // dropped, for want of room
  }
}

void Planned::act_after(size_t op) {
  if (swaps_->after(op).empty()) return;
  const Together together(*memory_.device);
  for (uint32_t swap : swaps_->after(op)) start_out(swap);
}

// What was given to a collective leaves when that is complete.
void Planned::start_deferred() {
  const auto may_start = [this](uint32_t swap) { return swaps_->block_of(swap) == nullptr || swaps_->block_of(swap)->collectives == 0; };
  const auto first = std::partition(deferred_.begin(), deferred_.end(), [&](uint32_t swap) { return !may_start(swap); });
  const std::vector<uint32_t> due(first, deferred_.end());
  deferred_.erase(first, deferred_.end());
  for (uint32_t swap : due) start_out(swap);
}

// Ops of several threads need not end in the order in which they began, nor in the iteration.
void Planned::after_op(ThreadState& thread) {
  Recipes captured = std::exchange(thread.captured, {});
  if (!swaps_ || thread.course != course_) return;
  act_after(thread.planned_op);
  if (!remakings_) return;
  if (thread.captures) remakings_->keep(thread.planned_op, std::move(captured));
  if (!may_drop()) return;
  for (uint32_t drop : remakings_->drops_after(thread.planned_op))
    if (Block* block = swaps_->block_at(remakings_->storage_of(drop))) {
      remakings_->drop(drop, *block, stream_->is_derailed());
      swaps_->on_release(*block);  // it comes back as another of the plan's storages
    }
}

void Planned::start_out(uint32_t swap) {
  Block* block = swaps_->block_of(swap);
  if (block != nullptr && block->collectives > 0) return deferred_.push_back(swap);
  if (block == nullptr || block->copy || !block->is_idle() || block->arena != memory_.arena || !block->dirty) return;
  if (movable_storage(*block) == nullptr) return;
  moves_.release_frozen_extent(*block);
  if (block->extent == nullptr) {
    try {
      block->extent = memory_.tier->reserve(block->bytes);
    } catch (const TierFailure&) {
      return;  // it stays; if it must leave after all, that says why it can't
    }
    block->tier = memory_.tier;
  }
  block->dirty = false;  // from here on: an op that writes to it sets it again
  copies_.begin(*block, Copy::Direction::kOut, block->region, swap);
}

// The block's bytes are to be out of the arena now.
void Planned::finish_out(uint32_t swap) {
  deferred_.erase(std::remove(deferred_.begin(), deferred_.end(), swap), deferred_.end());  // too late: it stays
  Block* block = swaps_->block_of(swap);
  if (block == nullptr) return;
  if (block->copy) copies_.settle(*block);  // (one that came in, and that nobody has used since, leaves again)
  if (!block->dirty && block->extent != nullptr && residency_.may_move(*block)) moves_.mend_unseen_write(*block);
  if (block->dirty || block->extent == nullptr || !residency_.may_move(*block) || block->arena != memory_.arena) return;
  if (c10::StorageImpl* storage = movable_storage(*block)) {
    moves_.leave_arena(*block, *storage);
    ++stats_.swaps;
  }
}

void Planned::start_in(uint32_t swap) {
  Plan* plan = memory_.arena->plan();
  Block* block = swaps_->block_of(swap);
  bool comes = block != nullptr && !block->resident() && !block->copy && block->extent != nullptr;
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
  copies_.begin(*block, Copy::Direction::kIn, region, swap);
}

// (A small one that is back before its time would be in the way, and stay until no op runs: it goes to the shelf.)
Region* Planned::place_late(Block& block) {
  Plan* plan = memory_.arena->plan();
  if (plan == nullptr || !swaps_ || block.small) return nullptr;
  const uint32_t back = block.swapped >= 0 ? swaps_->arrival(block) : SwapTable::kNone;
  const auto place = back == SwapTable::kNone && remakings_ ? remakings_->place_of(block) : std::optional(back);
  if (!place || *place == SwapTable::kNone) return nullptr;
  return plan->take_late(*place, memory_.arena->round(block.bytes), &block);
}

}  // namespace memfit
