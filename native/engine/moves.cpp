#include "moves.h"

#include <algorithm>
#include <exception>

#include "fingerprint.h"
#include "observer.h"
#include "pointers.h"
#include "stopwatch.h"

namespace memfit {

namespace {

constexpr size_t kLeastSpare = 4;  // pages, of which the places' ends take up to three

}  // namespace

// The copies of its time belong to no op that is recorded.
class Moves::Apart {
 public:
  explicit Apart(Moves& moves) : recorder_(moves.recorder_), stop_(recorder_.clock_stops()) {}
  ~Apart() {
    try {
      recorder_.clock_goes_on(stop_);
    } catch (const std::exception&) {
      // The device's next answer says what is wrong.
    }
  }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  Recorder& recorder_;
  Recorder::Stop stop_;
};

bool Moves::move_to(Block& block, Region* target) {
  c10::StorageImpl* storage = movable_storage(block);
  if (storage == nullptr) block.held = true;  // it is dying or was tampered with: leave it alone
  if (storage == nullptr || !carry(block, target->offset, *storage)) {
    memory_.arena->give_back(target);
    return false;
  }
  books_.leaves(block);
  memory_.arena->give_back(block.region);
  block.region = target;
  books_.arrives(block, *storage);
  ++stats_.relocations;
  stats_.bytes_relocated += block.bytes;
  return true;
}

bool Moves::carry(Block& mover, size_t target, c10::StorageImpl& storage) {
  Arena& arena = *memory_.arena;
  if (arena.is_returning()) arena.release_pages_beside({*mover.region, target});
  if (arena.spare({*mover.region, target, mover.region->size}) < 0) return carry_in_pieces(mover, target, storage);
  try {
    arena.back(target, target + mover.region->size);
  } catch (const TierFailure&) {
    return false;
  }
  return slide(mover, arena.base() + target);
}

// The old pages of each piece go back before the next one has new ones: both places together may not have memory.
bool Moves::carry_in_pieces(Block& mover, size_t target, c10::StorageImpl& storage) {
  Arena& arena = *memory_.arena;
  const size_t from = mover.region->offset, size = mover.region->size, page = arena.page();
  const auto room = [&](size_t done) { return arena.spare({*mover.region, target, done, done}); };
  if (target > from || room(0) < static_cast<int64_t>(kLeastSpare * page)) return false;
  const Apart apart(*this);
  size_t done = 0;
  try {
    while (done < size) {
      const size_t backed = done == 0 ? target / page * page : round_up(target + done, page);
      size_t end = std::min({size, backed + static_cast<size_t>(std::max<int64_t>(room(done), 0)) - target, done + (from - target)});
      if (end < size) end -= end % Tier::kAlignment;
      if (end <= done) break;
      arena.back(target + done, target + end);
      memory_.device->copy(arena.base() + target + done, mover.address() + done, std::min(end, mover.bytes) - done);
      done = end;
      arena.release_pages_beside({*mover.region, target, done, done});
    }
  } catch (const TierFailure&) {
    // There is no memory for the next piece.
  }
  if (done == size) return true;
  if (done != 0) evict_parts(mover, target, done, storage);
  return false;
}

// The first `done` bytes are at `target` already, and there is no memory for the others.
void Moves::evict_parts(Block& mover, size_t target, size_t done, c10::StorageImpl& storage) {
  release_frozen_extent(mover);
  try {
    if (mover.extent == nullptr) mover.extent = memory_.tier->claim(mover.bytes), mover.tier = memory_.tier;
    mover.tier->write_part(mover.extent, mover.bytes, 0, memory_.arena->base() + target, done);
    mover.tier->write_part(mover.extent, mover.bytes, done, mover.address() + done, mover.bytes - done);
    mover.dirty = false;
    went_out(mover);
  } catch (const TierFailure& error) {
    mover.lost = error.what();
  }
  leave_arena(mover, storage);
  ++stats_.evictions;
}

// Something wrote to the block's bytes that was no op's argument (a compiled kernel, an extension's function): the
// tier's copy is not what it was taken for. Told once, with the op that had them last.
bool Moves::written_unseen(const Block& block) {
  if (block.dirty || memory_.device->is_asynchronous()) return false;
  Stopwatch stopwatch(stats_.check_ns);
  stats_.bytes_checked += block.bytes;
  if (fingerprint(block.address(), block.bytes) == block.print) return false;
  ++stats_.unseen_writes;
  const std::string op = block.used_by != nullptr ? block.used_by->name : "no op";
  notices_.add("unseen " + op, "a tensor's bytes changed, but no op was seen to write to them (the last op that used them: " + op +
                             "); memfit keeps the change, which costs a copy. torch.compile or an extension may have written it");
  return true;
}

void Moves::mend_unseen_write(Block& block) {
  if (!written_unseen(block)) return;
  block.dirty = true;
  try {
    copy_out(block);
  } catch (const TierFailure&) {
    // It stays, for now.
  }
}

void Moves::copy_out(Block& block) {
  if (!block.dirty && !written_unseen(block)) {
    ++stats_.drops;
    return;
  }
  Stopwatch stopwatch(stats_.copy_ns, &stats_.out_ns, !memory_.device->is_asynchronous());
  const Apart apart(*this);
  release_frozen_extent(block);
  const auto write = [&] {
    if (block.extent != nullptr) return block.tier->write(block.extent, block.address(), block.bytes);
    block.extent = memory_.tier->put(block.address(), block.bytes);
    block.tier = memory_.tier;
  };
  if (memory_.tier->is_direct())
    memory_.device->copy_early({block.idle_since, books_.now(), memory_.tier->releases()}, write);
  else
    write();
  block.dirty = false;
  went_out(block);
  if (memory_.device->is_asynchronous()) stats_.untimed_out_bytes += block.bytes;
}

void Moves::went_out(const Block& block) {
  stats_.bytes_out += block.bytes;
  recorder_.went_out(block);
}

void Moves::release_frozen_extent(Block& block) {
  if (memory_.tier->frozen()) memory_.thaw_if_alone();
  if (block.extent == nullptr || !memory_.tier->frozen()) return;
  block.tier->release(block.extent);
  block.extent = nullptr;
}

bool Moves::evict(Block& block) {
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

void Moves::leave_arena(Block& block, c10::StorageImpl& storage) {
  books_.leaves(block);
  memory_.arena->give_back(block.region);
  block.region = nullptr;
  block.arena.reset();
  ++block.departures;
  set_absent(storage);
}

void Moves::fetch(Block& block, Region* region, c10::StorageImpl& storage) {
  memory_.arena->back(region);
  try {
    Stopwatch stopwatch(stats_.copy_ns, &stats_.in_ns, !memory_.device->is_asynchronous());
    const Apart apart(*this);
    block.read_back(memory_.arena->base() + region->offset);
  } catch (...) {
    memory_.arena->give_back(region);
    throw;
  }
  come_in(block, region, storage);
  if (memory_.device->is_asynchronous()) {
    stats_.untimed_in_bytes += block.bytes;
  } else if (!block.dirty) {
    Stopwatch stopwatch(stats_.check_ns);
    block.print = fingerprint(block.address(), block.bytes);
  }
}

void Moves::come_in(Block& block, Region* region, c10::StorageImpl& storage) {
  block.region = region;
  block.arena = memory_.arena;
  books_.arrives(block, storage);  // `dirty` stays: the op that needs the bytes may be about to write to them
  stats_.bytes_in += block.bytes;
  note_peaks();
}

size_t Moves::move_down(Ranges& ranges, Block& mover, size_t target) {
  c10::StorageImpl* storage = ranges.may_slide(*mover.region, target) ? movable_storage(mover) : nullptr;
  if (storage == nullptr) return mover.region->end();
  char* to = memory_.arena->base() + target;
  memory_.arena->back(target, target + mover.region->size);
  if (!slide(mover, to)) move_by_tier(mover, to, *storage);
  has_slid(ranges, mover, target, *storage);
  return mover.region->end();
}

bool Moves::slide_to(Ranges& ranges, Block& mover, size_t target) {
  if (target == mover.region->offset) return true;
  if (!ranges.may_slide(*mover.region, target)) return false;
  c10::StorageImpl* storage = movable_storage(mover);
  if (storage == nullptr) {
    mover.held = true;  // as in move_to
    return false;
  }
  if (!carry(mover, target, *storage)) return false;
  has_slid(ranges, mover, target, *storage);
  return true;
}

void Moves::has_slid(Ranges& ranges, Block& mover, size_t target, c10::StorageImpl& storage) {
  books_.leaves(mover);
  mover.region = ranges.slide(mover.region, target);
  books_.arrives(mover, storage);
  ++stats_.relocations;
  stats_.bytes_relocated += mover.bytes;
}

bool Moves::slide(const Block& mover, char* to) {
  const Apart apart(*this);
  return memory_.device->slide(to, mover.address(), mover.bytes);
}

// There and back. The op that needs the bytes may be about to write to them: they stay as dirty as they were.
void Moves::move_by_tier(Block& mover, char* to, c10::StorageImpl& storage) {
  bool was_dirty = mover.dirty;
  copy_out(mover);
  try {
    const Apart apart(*this);
    mover.read_back(to);
  } catch (...) {  // it may have overwritten what it was to bring: what is whole lies in the tier
    leave_arena(mover, storage);
    mover.dirty = was_dirty;
    throw;
  }
  mover.dirty = was_dirty;
}

void Moves::note_peaks() {
  stats_.peak_resident_bytes = std::max(stats_.peak_resident_bytes, memory_.arena->used());
  stats_.peak_live_bytes = std::max(stats_.peak_live_bytes, stats_.live_bytes);
}

}  // namespace memfit
