// Residency: what leaves the arena, what comes back, and where it is put.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine.h"
#include "fingerprint.h"
#include "lock.h"
#include "observer.h"
#include "pointers.h"
#include "stopwatch.h"

namespace memfit {

namespace {

// Free regions cost nothing to clear; `immovable` ones cannot be cleared at all.
constexpr double kImmovable = std::numeric_limits<double>::infinity();

}  // namespace

// A place for `bytes`. `more` is what the running op will want beside them.
Region* Engine::place(size_t bytes, size_t more, Block* block, bool high) {
  if (block->small)
    if (Region* region = place_on_shelf(*block, /*evicts=*/false)) return region;
  Ranges& ranges = arena_->ranges;
  if (arena_->plan() != nullptr) {  // what it doesn't know goes beside its zone, as long as nothing must leave
    if (Region* region = ranges.take_lowest(bytes, block)) return region;
    if (make_room(bytes)) return ranges.take(bytes, block);
    drop_plan();
  }
  // A stretch twice as long can be cut anywhere: one part will still be long enough. A shorter one is cut at its ends.
  const size_t window = bytes + more;
  bool tight = ranges.largest_free() < window && widest_window() < 2 * window;
  high &= stats_.budget != 0 && ranges.largest_free() < 2 * window;
  Region* region = tight ? place_at_edge(bytes, block, high) : ranges.take(bytes, block, high);
  if (region == nullptr && !tight && make_room(bytes)) region = ranges.take(bytes, block);
  // Before it is refused, it gets what the shelf has to spare.
  bool grown = region == nullptr && arena_->trim_shelf(0, &shelf_owner_);
  return grown ? place(bytes, more, block, high) : region;
}

// Where space is tight: at an end of the smallest stretch that holds it, so that no stretch is cut in two.
Region* Engine::place_at_edge(size_t bytes, Block* block, bool high) {
  Ranges& ranges = arena_->ranges;
  bytes = round_up(bytes, ranges.alignment());
  while (true) {  // each time that one cannot be cleared, something in it turns out to stay
    auto [first, last] = smallest_stretch(bytes);
    if (first == nullptr) return nullptr;
    size_t end = std::min(last->end(), ranges.limit());
    size_t offset = high ? end - bytes : first->offset;
    while (first->end() <= offset) first = first->next;
    while (last->offset >= offset + bytes) last = last->prev;
    if (clear(first, last)) return ranges.take_at(ranges.hole_at(offset), offset, bytes, block);
  }
}

// The first and last region of the shortest run of holes and idle storages that is at least `bytes` long.
std::pair<Region*, Region*> Engine::smallest_stretch(size_t bytes) const {
  const Ranges& ranges = arena_->ranges;
  std::pair<Region*, Region*> best{nullptr, nullptr};
  size_t smallest = SIZE_MAX;
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit();) {
    Region* first = r;
    Region* last = nullptr;
    for (; r != nullptr && r->offset < ranges.limit() && (r->is_free() || may_move(*owner_of(r))); r = r->next) last = r;
    if (last == nullptr) {
      r = r->next;
      continue;
    }
    size_t span = std::min(last->end(), ranges.limit()) - first->offset;
    if (span >= bytes && span < smallest) smallest = span, best = {first, last};
  }
  return best;
}

// What it costs to have the block away: the bytes its absence moves, the less the longer it is not needed.
double Engine::eviction_cost(const Block& block) const {
  uint64_t distance = forecast_.distance(block);
  bool known = distance != 0;
  double moved = static_cast<double>(block.bytes) * ((block.dirty ? 1.0 : 0.0) + (distance != Forecast::kNever));
  // With nothing known of the future, the least recently used block is taken to be the last one needed.
  double away = known ? static_cast<double>(distance) : 1.0 + static_cast<double>(clock_ - block.last_use);
  return moved / away + 1e-9 * static_cast<double>(block.bytes);
}

// Clear the cheapest window of idle storages and holes that is `bytes` long. False when there is none.
bool Engine::make_room(size_t bytes) {
  Ranges& ranges = arena_->ranges;
  bytes = round_up(bytes, ranges.alignment());
  while (true) {  // as in place_at_edge
    Region *best_first = nullptr, *best_last = nullptr;
    double best = kImmovable, cost = 0;
    size_t span = 0;
    Region* first = ranges.first();
    for (Region* r = first; r != nullptr && r->offset < ranges.limit(); r = r->next) {
      if (!r->is_free() && !may_move(*owner_of(r))) {
        first = r->next, span = 0, cost = 0;
        continue;
      }
      span += std::min(r->end(), ranges.limit()) - r->offset;
      cost += r->is_free() ? 0 : eviction_cost(*owner_of(r));
      while (first != r && span - first->size >= bytes) {
        span -= first->size;
        cost -= first->is_free() ? 0 : eviction_cost(*owner_of(first));
        first = first->next;
      }
      if (span >= bytes && cost < best) best = cost, best_first = first, best_last = r;
    }
    if (best_first == nullptr) return false;
    if (clear(best_first, best_last)) return true;
  }
}

// Empty the regions from `first` to `last`: largest first, into holes elsewhere if they fit, else to the tier.
bool Engine::clear(Region* first, Region* last, bool evicts) {
  std::vector<Block*> victims;
  for (Region* r = first;; r = r->next) {
    if (!r->is_free()) victims.push_back(owner_of(r));
    if (r == last) break;
  }
  size_t from = first->offset, to = last->end();
  std::sort(victims.begin(), victims.end(), [](Block* a, Block* b) { return a->bytes > b->bytes; });
  bool cleared = true;
  for (Block* victim : victims)
    if (!relocate(*victim, from, to) && !(evicts && evict(*victim))) cleared = false;
  return cleared;
}

bool Engine::relocate(Block& block, size_t avoid_from, size_t avoid_to) {
  Region* target = block.small ? arena_->take_on_shelf(block.bytes, &block, arena_->shelf_end()) : nullptr;
  if (target == nullptr) target = arena_->ranges.take_outside(block.bytes, &block, avoid_from, avoid_to);
  return target != nullptr && move_to(block, target);
}

// Move the bytes to `target`, which is taken for the block already; the two may overlap only if it is free.
bool Engine::move_to(Block& block, Region* target) {
  try {
    arena_->back(target);
  } catch (const TierFailure&) {
    return false;
  }
  c10::StorageImpl* storage = movable_storage(block);
  if (storage == nullptr) {
    arena_->give_back(target);
    block.held = true;  // its storage is dying or was tampered with: leave it alone
    return false;
  }
  device_->copy(arena_->base() + target->offset, block.address(), block.bytes);
  by_address_.erase(block.address());
  arena_->give_back(block.region);
  block.region = target;
  lies_anew(block, *storage);
  ++stats_.relocations;
  stats_.bytes_relocated += block.bytes;
  return true;
}

// Something wrote to the block's bytes that was no op's argument (a compiled kernel, an extension's function): the
// tier's copy is not what it was taken for. Told once, with the op that had them last.
bool Engine::written_unseen(const Block& block) {
  if (block.dirty || device_->is_asynchronous()) return false;
  Stopwatch stopwatch(stats_.check_ns);
  stats_.bytes_checked += block.bytes;
  if (fingerprint(block.address(), block.bytes) == block.print) return false;
  ++stats_.unseen_writes;
  const std::string op = block.used_by != nullptr ? block.used_by->name : "no op";
  notify("unseen " + op, "a tensor's bytes changed, but no op was seen to write to them (the last op that used them: " + op +
                             "); memfit keeps the change, which costs a copy. torch.compile or an extension may have written it");
  return true;
}

// Its copy in the tier is right again, or it counts as written to. Raises nothing.
void Engine::mend_unseen_write(Block& block) {
  if (!written_unseen(block)) return;
  block.dirty = true;
  try {
    copy_out(block);
  } catch (const TierFailure&) {
    // It stays, for now.
  }
}

void Engine::copy_out(Block& block) {
  if (!block.dirty && !written_unseen(block)) {
    ++stats_.drops;
    return;
  }
  Stopwatch stopwatch(stats_.copy_ns, &stats_.out_ns, !device_->is_asynchronous());
  release_frozen_slot(block);
  if (block.slot != nullptr) {
    block.tier->write(block.slot, block.address(), block.bytes);
  } else {
    block.slot = tier_->put(block.address(), block.bytes);
    block.tier = tier_;
  }
  block.dirty = false;
  stats_.bytes_out += block.bytes;
  if (device_->is_asynchronous()) stats_.untimed_out += block.bytes;
}

// A forked child may still read it: the block's next copy goes elsewhere.
void Engine::release_frozen_slot(Block& block) {
  if (tier_->frozen()) thaw_if_alone();
  if (block.slot == nullptr || !tier_->frozen()) return;
  block.tier->release(block.slot);
  block.slot = nullptr;
}

// Swap out. Raises TierFailure with nothing changed; false when the storage cannot be taken away.
bool Engine::evict(Block& block) {
  c10::StorageImpl* storage = movable_storage(block);
  if (storage == nullptr) {
    block.held = true;
    return false;
  }
  copy_out(block);
  leave_arena(block, *storage);
  ++stats_.evictions;
  return true;
}

void Engine::leave_arena(Block& block, c10::StorageImpl& storage) {
  by_address_.erase(block.address());
  arena_->give_back(block.region);
  block.region = nullptr;
  block.arena.reset();
  set_absent(storage);
}

// Swap in. False when there is no room; raises TierFailure with nothing changed.
bool Engine::bring_in(Block& block, size_t more) {
  c10::StorageImpl* storage = storage_behind(block);
  if (storage == nullptr) return true;  // nobody can read it any more
  if (block.copy && settle(block)) return true;
  Region* region = place_late(block);
  if (region == nullptr) region = place(block.bytes, more, &block);
  if (region == nullptr) return false;
  fetch(block, region, *storage);
  return true;
}

// Copy the block's bytes into `region`, which is taken for it. Raises TierFailure with nothing changed.
void Engine::fetch(Block& block, Region* region, c10::StorageImpl& storage) {
  arena_->back(region);
  try {
    Stopwatch stopwatch(stats_.copy_ns, &stats_.in_ns, !device_->is_asynchronous());
    block.tier->get(block.slot, arena_->base() + region->offset, block.bytes);
  } catch (...) {
    arena_->give_back(region);
    throw;
  }
  come_in(block, region, storage);
  if (device_->is_asynchronous()) {
    stats_.untimed_in += block.bytes;
  } else if (!block.dirty) {
    Stopwatch stopwatch(stats_.check_ns);
    block.print = fingerprint(block.address(), block.bytes);
  }
}

// The block's bytes are in `region`.
void Engine::come_in(Block& block, Region* region, c10::StorageImpl& storage) {
  block.region = region;
  block.arena = arena_;
  lies_anew(block, storage);  // `dirty` stays: the op that needs the bytes may be about to write to them
  stats_.bytes_in += block.bytes;
  note_peaks();
}

// The longest stretch of the arena without a storage that must stay put; `running`: while an op runs.
size_t Engine::widest_window(bool running) const {
  const Ranges& ranges = arena_->ranges;
  size_t widest = 0, span = 0;
  for (Region* r = ranges.first(); r != nullptr && r->offset < ranges.limit(); r = r->next) {
    bool stays = !r->is_free() && (!may_move(*owner_of(r)) || (running && owner_of(r)->small));
    span = stays ? 0 : span + std::min(r->end(), ranges.limit()) - r->offset;
    widest = std::max(widest, span);
  }
  return widest;
}

// Slide the blocks of an op that has not started yet to the low end of the arena, so that what it will
// allocate finds one contiguous window above them.
void Engine::consolidate(const std::vector<Block*>& own) {
  std::vector<Block*> movers;
  for (Block* block : own)
    if (block->arena == arena_ && block->resident() && block->active == 1 && !block->pinned && !block->held &&
        block->attached() && !arena_->on_shelf(block->region))
      movers.push_back(block);
  std::sort(movers.begin(), movers.end(), [](Block* a, Block* b) { return a->region->offset < b->region->offset; });
  ++stats_.consolidations;
  size_t floor = 0;
  for (Block* mover : movers) floor = slide_down(*mover, floor);
}

// Move one block to the lowest address from `floor` on, clearing idle storages out of its way.
// Returns the end of where it lies now.
size_t Engine::slide_down(Block& mover, size_t floor) {
  Ranges& ranges = arena_->ranges;
  size_t size = mover.region->size;
  Region* first = nullptr;
  size_t span = 0;
  Region* r = ranges.first();
  for (; r != nullptr && r != mover.region && span < size; r = r->next) {
    if (r->offset < floor) continue;
    if (!r->is_free() && !may_move(*owner_of(r))) {
      first = nullptr, span = 0;
      continue;
    }
    if (first == nullptr) first = r;
    span += r->size;
  }
  bool adjacent = r == mover.region && first != nullptr;
  if (span < size && !adjacent) return mover.region->end();
  Region* last = span < size ? mover.region->prev : r->prev;
  size_t target = first->offset;
  if (!clear(first, last)) return mover.region->end();
  return move_down(ranges, mover, target);
}

// The span between `target` and the block (or the block's own size from `target` on) is free.
size_t Engine::move_down(Ranges& ranges, Block& mover, size_t target) {
  c10::StorageImpl* storage = movable_storage(mover);
  if (storage == nullptr) return mover.region->end();
  const char* from = mover.address();
  char* to = arena_->base() + target;
  arena_->back(target, target + mover.region->size);
  if (!device_->slide(to, from, mover.bytes)) move_by_tier(mover, to, *storage);
  by_address_.erase(from);
  ranges.give_back(mover.region);
  mover.region = ranges.take_at(ranges.hole_at(target), target, mover.bytes, &mover);
  lies_anew(mover, *storage);
  ++stats_.relocations;
  stats_.bytes_relocated += mover.bytes;
  return mover.region->end();
}

// There and back. The op that needs the bytes may be about to write to them: they stay as dirty as they were.
void Engine::move_by_tier(Block& mover, char* to, c10::StorageImpl& storage) {
  bool was_dirty = mover.dirty;
  copy_out(mover);
  try {
    mover.tier->get(mover.slot, to, mover.bytes);
  } catch (...) {  // it may have overwritten what it was to bring: what is whole lies in the tier
    leave_arena(mover, storage);
    mover.dirty = was_dirty;
    throw;
  }
  mover.dirty = was_dirty;
}

}  // namespace memfit
