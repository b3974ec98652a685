// Block: one storage's bytes, wherever they are now.
// Plain data, one member for each thing that any part of the engine has to know of a storage.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "paging/mapped.h"
#include "ranges.h"
#include "tier.h"

namespace memfit {

class Device;
struct ThreadState;
struct Copy;
struct OpInfo;
struct Value;

// A block's bytes are neither in the arena nor in a tier: they are to be made again.
struct Discarded {
  std::shared_ptr<Value> value;                 // what they are,
  std::vector<std::shared_ptr<Value>> sources;  // and what they are to be made from
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> keeps;  // those of these that the program has let go of
  std::string why;  // it could not be done, when it was last tried
  bool is_compared = true;   // with what they were, by the block's fingerprint
  bool is_planned = false;  // by a plan that has it made again
};

// Whether raw memory escaped (numpy, data_ptr, DLPack, a Python number). Only `Recorder::pin` sets it, so that no recording misses that.
class Pin {
 public:
  operator bool() const { return is_set_; }

 private:
  friend class Recorder;
  bool is_set_ = false;
};

struct Block {
  uint64_t id = 0;
  uint64_t session = 0;  // the one that made it; it may outlive that
  size_t index = 0;  // in the engine's list of blocks
  size_t bytes = 0;  // as asked for
  Device* device = nullptr;

  // Residency. Resident: `region` is set. Swapped out: `extent` is set and the storage's pointer is null.
  // Both set: the tier's copy is valid as long as `dirty` is false.
  Region* region = nullptr;
  Extent extent = nullptr;
  bool dirty = true;
  uint64_t print = 0;  // of the bytes that the tier's copy has too, as long as `dirty` is false (on a host)
  std::shared_ptr<Arena> arena;  // keeps the mapping alive as long as the bytes lie in it
  std::shared_ptr<Tier> tier;
  std::shared_ptr<Mapped> mapped;  // an op sees its bytes where they wait: it is resident, and not in the arena
  bool stays_mapped = false;  // and may well be from one op to the next
  std::string lost;  // why they are no longer what they should be, where an op could not finish

  // The storage whose pointer this block is behind; unknown (expired) until an op has shown it.
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
  const c10::StorageImpl* storage_address = nullptr;  // identity only, never dereferenced

  // Its bytes as an op's result, where that is known; and what they are to be made from, once they were discarded.
  std::shared_ptr<Value> value;
  std::unique_ptr<Discarded> discarded;
  uint64_t departures = 0;  // of its bytes from the arena
  bool recomputed = false;  // and not used since: not to be discarded once more
  uint64_t not_made_at = 0;  // when it was last seen (op clock) that what it is made from is missing, or too far away
  bool is_beside = false;   // made by a thread that carries out collectives
  bool temporary = false;   // made by a re-run or for a slice, or let go of by the program: no storage of the program's

  std::shared_ptr<Copy> copy;  // on its way to the tier or back; the block is active meanwhile

  // Reasons to stay put.
  int32_t active = 0;  // running ops (and open holds) that use the bytes
  int32_t aside = 0;   // ops about to start that let others go first
  int32_t collectives = 0;  // those that have yet to complete, and were given the bytes
  Pin pinned;
  bool small = false;   // lies on the shelf if it can, and moves only while no op runs
  bool held = true;  // made outside an op, or by an op that leaves it uninitialised: C++ may still write to it
  const ThreadState* kept_for = nullptr;  // whose C++ function has yet to return, and may use it by a raw pointer between ops
  const void* maker = nullptr;  // the thread that made it, by identity
  int64_t source = -1;  // the line that pinned it, or that made it outside an op
  bool dead = false;  // released while active; deleted when the last user ends

  // The policy's knowledge of it.
  uint64_t last_use = 0;  // op clock
  uint64_t idle_since = 0;  // likewise: the last that used its bytes has ended, or they have come where they are
  uint64_t touched_by = 0;  // serial of the depth-0 op that touched it last
  uint64_t written_by = 0;  // serial of the depth-0 op that wrote to it last
  const OpInfo* used_by = nullptr;  // the op that touched it last
  uint64_t born_in = 0;     // serial of the depth-0 op that allocated it
  size_t ticket = 0;        // of that op's window
  int32_t position = -1;  // index in this iteration's access log
  int32_t forecast = -1;  // the same storage's index in the last iteration's log
  int32_t swapped = -1;   // index among the storages that the plan swaps

  bool resident() const { return region != nullptr || mapped; }
  bool attached() const { return storage_address != nullptr; }
  // Nothing keeps it where it is (but ops that read small storages unseen: Residency::may_move).
  bool is_idle() const { return attached() && active == 0 && !pinned && !held && resident(); }
  char* address() const { return mapped ? mapped->address() : arena->base() + region->offset; }
  // Raises TierFailure when they are nowhere.
  void require_bytes() const {
    if (!lost.empty()) throw TierFailure("its bytes were lost: " + lost);
    if (discarded) throw TierFailure("its bytes were to be made again, which failed: " + discarded->why);
  }
  // Copies them from the tier. Raises TierFailure.
  void read_back(char* to) const {
    require_bytes();
    tier->get(extent, to, bytes);
  }
};

inline Block* owner_of(const Region* region) { return static_cast<Block*>(region->owner); }

// A region of a plan or of the shelf has become another one.
inline void tell_owner(Region* region) { owner_of(region)->region = region; }

}  // namespace memfit
