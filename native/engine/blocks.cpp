// The life of a block: allocated, shown behind a storage, used by ops, released.
#include <algorithm>

#include "engine.h"
#include "lock.h"
#include "observer.h"
#include "pointers.h"
#include "stopwatch.h"

namespace memfit {

at::DataPtr Engine::allocate(Device& device, size_t bytes) {
  if (bytes == 0 || !active() || memory_.device != &device || forked_) return device.ordinary().allocate(bytes);
  ThreadState& thread = this_thread();
  bool inside = thread.depth > 0;
  int64_t source = inside ? thread.source : current_source();
  Failure failure;
  at::DataPtr made;
  {
    Lock lock(*this);
    if (!active()) return device.ordinary().allocate(bytes);
    if (next_failure_.kind != Failure::Kind::kNone) std::swap(thread.failure, next_failure_);
    if (thread.failure.kind == Failure::Kind::kNone) {
      if (Block* block = allocate_block(thread, bytes, inside, source))
        made = {block->address(), block->address(), &delete_by_address, device.name()};
      if (!made && !active()) return device.ordinary().allocate(bytes);  // the session ended while this thread waited
    }
    if (!made) {
      failure = thread.failure;
      thread.untold = false;
    }
    if (!made && !inside) thread.failure = Failure();
  }
  say();
  if (made) return made;
  raise(failure);
}

Block* Engine::allocate_block(ThreadState& thread, size_t bytes, bool inside, int64_t source) {
  Block* block = new_block(bytes);
  block->maker = &thread;
  try {
    Stopwatch stopwatch(thread.waited_ns, nullptr, inside && recorder_.on());
    do {
      block->region = inside ? place_for_op(thread, *block) : place_outside_ops(*block);
    } while (block->region == nullptr && ((wait_for_others(thread) && active()) || grow(bytes)));
    if (block->region != nullptr) memory_.arena->back(block->region);
  } catch (const TierFailure& error) {
    block->region = nullptr;
    fail(thread, Failure::Kind::kTier, error.what(), bytes);
  }
  if (block->region == nullptr) {
    if (active() && thread.failure.kind == Failure::Kind::kNone) fail(thread, Failure::Kind::kBudget, "", bytes);
    delete_block(block);
    return nullptr;
  }
  block->arena = memory_.arena;
  block->source = source;
  block->last_use = books_.now();
  books_.arrives(*block);
  stats_.live += bytes;
  ++stats_.allocations;
  moves_.note_peaks();
  forecast_.on_allocation(*block);
  planned_.on_allocation(*block);
  if (recorder_.on()) recorder_.allocated(*block, inside, source);
  if (inside) {
    block->held = false;
    block->active = 1;
    block->touched_by = block->written_by = block->born_in = thread.serial;
    thread.touched.push_back(block);
  }
  return block;
}

Region* Engine::place_for_op(ThreadState& thread, Block& block) {
  const size_t size = memory_.arena->round(block.bytes);
  thread.allocated += size;
  bool high = OpWindow::goes_high(size, thread.largest);
  thread.largest = std::max(thread.largest, size);
  const size_t want = stats_.budget == 0 ? 0 : wanted(thread);
  const size_t more = want - std::min(want, thread.window.live() + size);
  Region* region = planned_.place(block);
  if (region == nullptr) region = placing_.place(block.bytes, more, &block, high);
  if (region == nullptr) return nullptr;
  block.ticket = thread.window.take(size, high);
  turns_.keep_promise(thread, size);
  return region;
}

Region* Engine::place_outside_ops(Block& block) {
  Region* region = planned_.place(block);
  // It has no op that would let it be moved there later: what lies above the shelf makes way now.
  if (region == nullptr && block.small) region = shelf_.place(block, /*evicts=*/true);
  return region != nullptr ? region : placing_.place(block.bytes, 0, &block);
}

Block* Engine::new_block(size_t bytes) {
  Block* block = books_.add(bytes, *memory_.device);
  block->small = shelf_.is_small(bytes);
  return block;
}

void Engine::delete_block(Block* block) {
  planned_.on_release(*block);
  books_.remove(block);
}

void Engine::release(Block* block) {
  ThreadState& thread = this_thread();
  if (block->copy) copies_.settle(*block);
  if (thread.depth > 0 && block->active > 0 && block->born_in == thread.serial)
    thread.window.give_back(block->ticket);
  // One that an earlier session left behind is none of this one's business.
  if (active() && books_.is_of_session(*block)) {
    stats_.live -= block->bytes;
    forecast_.on_release(*block);
    if (recorder_.on()) recorder_.released(*block, thread.depth > 0);
  }
  if (block->resident()) {
    if (thread.aside) memory_.device->lead();
    if (!forked_) block->device->released(block->address());
    books_.leaves(*block);
    if (block->arena != memory_.arena && !forked_)
      block->arena->give_back_with_pages(block->region);
    else
      block->arena->give_back(block->region);
    if (block->arena == memory_.arena && memory_.arena->plan() == nullptr) shelf_.trim();
    block->region = nullptr;
  }
  if (block->held && turns_.any_waits()) turns_.somebody_let_go();  // it was dying, and could not be moved away
  delete_block(block);
}

void Engine::release_by_address(void* address) {
  if (release_if_known(address)) return;
  device_of(address).ordinary().raw_deleter()(address);  // raw memory from before the first session
}

bool Engine::release_if_known(void* address) {
  Lock lock(*this);
  Block* block = books_.find_at(address);
  if (block != nullptr) release(block);
  return block != nullptr;
}

void Engine::release_by_block(Block* block) {
  Lock lock(*this);
  release(block);
}

void Engine::deactivate(Block& block) {
  if (--block.active > 0 || block.aside > 0) return;
  if (block.dead) {
    delete &block;
  } else if (!active()) {
    StopReport ignored;
    restore(block, ignored);
  }
}

void Engine::reset_peaks_locked() {
  memory_.arena->reset_footprint();
  stats_.peak_live = stats_.live;
  stats_.peak_resident = memory_.arena->used();
}

void Engine::reset_peaks() {
  Lock lock(*this);
  if (active()) reset_peaks_locked();
}

}  // namespace memfit
