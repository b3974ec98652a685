#include "allocation.h"

#include <algorithm>
#include <utility>

#include "stopwatch.h"

namespace memfit {

Block* Allocation::allocate(ThreadState& thread, size_t bytes, bool inside, int64_t source) {
  Block* block = on_.blocks.make(bytes);
  block->maker = &thread;
  if (!find_place(thread, *block, inside)) {
    on_.blocks.remove(block);
    return nullptr;
  }
  enter(thread, *block, inside, source);
  return block;
}

Block* Allocation::allocate_away(ThreadState& thread, size_t bytes) {
  Block* block = on_.blocks.make(bytes);
  try {
    block->extent = on_.memory.tier->reserve(bytes);
  } catch (...) {
    on_.blocks.remove(block);
    throw;
  }
  block->tier = on_.memory.tier;
  block->dirty = block->held = false;
  block->maker = &thread;
  block->source = thread.source;
  block->last_use = on_.books.now();
  on_.stats.live_bytes += block->bytes;
  ++on_.stats.allocations;
  on_.planned.on_allocation_away(thread, *block);
  on_.forecast.on_allocation(*block);
  if (on_.recorder.on()) on_.recorder.allocated(*block, /*inside_op=*/true, thread.source);
  on_.moves.note_peaks();
  block->active = 1;
  block->touched_by = block->written_by = block->born_in = thread.serial;
  block->ticket = thread.window.take(0, /*high=*/false);
  thread.touched.push_back(block);
  thread.wrote.push_back(block);
  return block;
}

bool Allocation::find_place(ThreadState& thread, Block& block, bool inside) {
  try {
    Stopwatch stopwatch(thread.waited_ns, nullptr, inside && on_.recorder.on());
    if (inside) note_request(thread, block);
    if (inside && on_.paging.is_better_mapped(thread, block.bytes) && map(thread, block)) return true;
    do {
      if (find_place_in_arena(thread, block, inside)) return true;
      if (on_.memory.is_closed) return false;
    } while (on_.room.may_grow(thread, block.bytes));
  } catch (const TierFailure& error) {
    block.region = nullptr;
    on_.refusals.refuse_by_tier(thread, error.what());
  }
  if (thread.failure.kind == Failure::Kind::kNone) on_.refusals.refuse(thread, block.bytes);
  return false;
}

void Allocation::note_request(ThreadState& thread, const Block& block) const {
  const size_t size = on_.memory.arena->round(block.bytes);
  thread.allocated += size;
  thread.largest = std::max(thread.largest, size);
}

// Or, where there is none and it may be, mapped.
bool Allocation::find_place_in_arena(ThreadState& thread, Block& block, bool inside) {
  do {
    if (on_.memory.is_closed) return false;
    block.region = inside ? place_for_op(thread, block) : place_outside_ops(thread, block);
    if (block.mapped) return true;
  } while (block.region == nullptr && on_.room.waits(thread));
  if (block.region == nullptr && inside && map(thread, block)) return true;
  while (block.region == nullptr && inside && on_.paging.make_room()) block.region = place_for_op(thread, block);
  if (block.region != nullptr) on_.memory.arena->back(block.region);
  return block.region != nullptr || block.mapped != nullptr;
}

bool Allocation::map(ThreadState& thread, Block& block) {
  if (thread.on_trial || !on_.paging.map_new(thread, block)) return false;
  const size_t size = on_.memory.arena->round(block.bytes);
  block.ticket = thread.window.take(size, OpWindow::goes_high(size, thread.largest));
  return true;
}

Region* Allocation::place_for_op(ThreadState& thread, Block& block) {
  const size_t size = on_.memory.arena->round(block.bytes);
  const bool high = OpWindow::goes_high(size, thread.largest);
  const size_t want = on_.stats.budget_bytes == 0 ? 0 : on_.needs.wanted(thread);
  const size_t more = want - std::min(want, thread.window.live() + size);
  const size_t rest = thread.need.known ? SIZE_MAX : 2 * (thread.input_bytes + thread.window.live() + size);
  const size_t spare = thread.need.known && more != 0 ? more + on_.memory.arena->page() : 0;
  Region* region = thread.over != nullptr ? on_.in_place.take_over(thread, block) : planned_place(thread, block);
  if (region == nullptr && !block.mapped) region = on_.placing.place(block.bytes, &block, {more, high, rest, spare});
  if (region == nullptr) return nullptr;
  block.ticket = thread.window.take(size, high);
  on_.turns.keep_promise(thread, size);
  return region;
}

Region* Allocation::planned_place(ThreadState& thread, Block& block) {
  if ((thread.is_apart() && thread.again == 0) || thread.is_slicing) return nullptr;
  InPlace::Offer offer = on_.in_place.offer(thread, block);
  if (offer.is_refused) on_.planned.refuse_handover(thread);
  Region* region = on_.planned.place(thread, block, offer.place());
  on_.in_place.settle(thread, std::move(offer));
  if (region == nullptr && on_.planned.wants_mapped()) map(thread, block);
  return region;
}

Region* Allocation::place_outside_ops(const ThreadState& thread, Block& block) {
  Region* region = thread.is_apart() ? nullptr : on_.planned.place(thread, block);
  // It has no op that would let it be moved there later: what lies above the shelf makes way now.
  if (region == nullptr && (block.small || on_.shelf.is_short(block.bytes))) region = on_.shelf.place(block, /*evicts=*/true);
  return region != nullptr ? region : on_.placing.place(block.bytes, &block, {});
}

void Allocation::enter(ThreadState& thread, Block& block, bool inside, int64_t source) {
  if (!block.mapped) block.arena = on_.memory.arena;
  block.source = source;
  block.last_use = on_.books.now();
  if (thread.carries_out) Recorder::pin(block, /*recorder=*/nullptr);  // it is none of the program's
  block.kept_for = thread.keeps ? &thread : nullptr;
  on_.books.arrives(block);
  block.temporary = thread.is_apart() || thread.is_slicing;
  if (!block.temporary || thread.again != 0) on_.planned.on_allocation(thread, block);
  if (!block.temporary) {
    on_.stats.live_bytes += block.bytes;
    ++on_.stats.allocations;
    on_.forecast.on_allocation(block);
    if (on_.recorder.on()) on_.recorder.allocated(block, inside, source);
  }
  on_.moves.note_peaks();
  if (thread.carries_out) note_beside(block);
  if (!inside) return;
  block.held = thread.keeps;
  block.active = 1;
  block.touched_by = block.written_by = block.born_in = thread.serial;
  thread.touched.push_back(&block);
  thread.wrote.push_back(&block);
}

// Plans leave room for that: they know nothing of it.
void Allocation::note_beside(Block& block) {
  block.is_beside = true;
  on_.scratch.make(on_.memory.arena->round(block.bytes));
  on_.stats.peak_beside_bytes = std::max(on_.stats.peak_beside_bytes, on_.scratch.live());
}

void Allocation::release(ThreadState& thread, Block* block) {
  if (block->is_beside && on_.books.is_of_session(*block)) on_.scratch.release(on_.memory.arena->round(block->bytes));
  if (block->copy) on_.copies.settle(*block);
  if (!block->temporary && on_.books.is_of_session(*block)) {
    on_.stats.live_bytes -= block->bytes;
    on_.forecast.on_release(*block);
    if (on_.recorder.on()) on_.recorder.released(*block, thread.depth > 0);
  }
  if (on_.discarding.outlives_its_storage(*block)) return;
  if (block->resident()) leave(thread, *block);
  if (block->held && on_.turns.any_waits()) on_.turns.somebody_let_go();  // it was dying, and could not be moved away
  on_.blocks.remove(block);
}

void Allocation::leave(ThreadState& thread, Block& block) {
  if (thread.aside) on_.memory.device->lead();
  const bool is_own = on_.memory.holds(block);
  block.device->released(block.address());
  on_.books.give_up(block, /*with_pages=*/!is_own);
  if (is_own && on_.memory.arena->plan() == nullptr) on_.shelf.trim();
}

}  // namespace memfit
