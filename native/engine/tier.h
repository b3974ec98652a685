// Tiers: where bytes go when they leave the arena.
//
// A Medium stores bytes at offsets; adaptors wrap a medium (checksums, injected faults). A Store counts what
// goes through it, and a Tier adds the bookkeeping of which offsets are taken, the same for every medium.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ranges.h"
#include "store.h"

namespace memfit {

class Device;

// A copy to or from a tier did not succeed. The bytes at its source are as they were before the call.
struct TierFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Medium {
 public:
  virtual ~Medium() = default;
  // Both raise TierFailure, and may run beside each other. Offsets are multiples of Tier::kAlignment; so are sizes, but
  // at the end of what is stored there. A part of what was written may be read and written anew.
  virtual void write(size_t offset, const void* from, size_t size) = 0;
  virtual void read(size_t offset, void* to, size_t size) = 0;
  // The bytes at [offset, offset + size) are no longer needed.
  virtual void discard(size_t offset, size_t size) = 0;
  virtual std::string name() const = 0;
  // There is room for the bytes at [offset, offset + size) from now on, as far as the medium can tell. Raises TierFailure.
  virtual void claim(size_t offset, size_t size) { (void)offset, (void)size; }
  // The bytes at [offset, offset + size) will be read soon.
  virtual void expect(size_t offset, size_t size) { (void)offset, (void)size; }
  // All of it lies in memory that ops reach.
  virtual bool is_memory() const { return false; }
  // Where they reach the bytes at [offset, offset + size), for which there is room; nullptr where they do not.
  virtual char* address(size_t offset, size_t size) { return (void)offset, (void)size, nullptr; }
  // Copies take their turn in a device's stream, and the calls return at once.
  virtual bool is_direct() const { return false; }
};

// One slab of ordinary memory outside the arena.
std::unique_ptr<Medium> make_ram(size_t capacity);
// One file in `folder`, without a name: nothing is left behind, however the process ends.
std::unique_ptr<Medium> make_disk(const std::string& folder);
// Offsets below `boundary` lie in `first`, the others in `second`.
std::unique_ptr<Medium> one_behind_another(std::unique_ptr<Medium> first, size_t boundary, std::unique_ptr<Medium> second);
// Keeps a checksum of what was written at each offset and compares it on every read (debug mode).
std::unique_ptr<Medium> with_checksums(std::unique_ptr<Medium> inner);

// Which copies shall fail, counted from 1 within each kind; 0 means none. `repeat` makes all later ones fail too.
struct Faults {
  int64_t fail_write = 0;
  int64_t fail_read = 0;
  int64_t corrupt_read = 0;
  bool repeat = false;
};
std::unique_ptr<Medium> with_faults(std::unique_ptr<Medium> inner, Faults faults);

// A link that is slower than the medium: for experiments, and to foresee what a slower machine would do.
struct Link {
  double bytes_per_second = 0;  // each way; 0: as fast as the medium is
  double latency_seconds = 0;   // of each copy
  int64_t changes_at = 0;       // from this copy on, counted from 1 over both ways; 0: never
  double change = 1;            // times the speed it had
};
std::unique_ptr<Medium> with_link(std::unique_ptr<Medium> inner, Link link);

// The parts that a tier is made of.
struct TierRecipe {
  std::string kind;    // "ram" or "disk"
  std::string folder;  // of the disk's file; for "ram": what does not fit goes there, if it is named
  size_t capacity = 0;  // of the ram, bytes
  bool checked = false;
  bool compresses = false;  // the disk
  Faults faults;
  Link link;
  int64_t longest_delay_us = 0;  // for tests: of a GPU's copies, which begin late by random times
  bool no_threads = false;       // for tests: as if the system had none left for copies beside the ops

  bool is_plain() const {
    return !checked && link.bytes_per_second <= 0 && link.latency_seconds <= 0 && !faults.fail_write && !faults.fail_read &&
           !faults.corrupt_read;
  }
};

// The stretch of a tier that holds one storage's copy.
using Extent = Region*;

class Tier {
 public:
  static constexpr size_t kAlignment = 4096;

  // No extent lies across `boundary` (0: there is none). `compressing`: the part of the medium, from there on, that does.
  explicit Tier(std::unique_ptr<Medium> medium, size_t boundary = 0, Compressing* compressing = nullptr);

  // An extent with nothing in it yet. Raises TierFailure when the tier is full.
  Extent reserve(size_t size);
  // Likewise, and what is written there will find room.
  Extent claim(size_t size);
  // All its bytes lie in memory that ops reach, at `address`.
  bool is_memory() const { return wall_ == 0 && store_.medium().is_memory(); }
  // nullptr where they do not reach those of this extent.
  char* address(Extent extent) { return store_.medium().address(extent->offset, extent->size); }
  void release(Extent extent);
  // These raise TierFailure and leave everything as it was. `write` and `get` may run beside other threads' calls.
  Extent put(const void* from, size_t size);
  void write(Extent extent, const void* from, size_t size);
  void get(Extent extent, void* to, size_t size);
  // As `write` and `get`, of the bytes from `at` on, in the middle of the `stored` ones that the extent holds.
  void write_part(Extent extent, size_t stored, size_t at, const void* from, size_t size);
  void get_part(Extent extent, size_t stored, size_t at, void* to, size_t size);

  // In a forked process only `get` does anything: the medium is the parent's, and so are the books of what is taken.
  // Extents keep their bytes, even after release, until thaw: a forked child may still read them.
  void freeze();
  void thaw();
  bool frozen() const { return frozen_; }
  // How many extents have been given up: what was read there may still be on its way.
  uint64_t releases() const { return releases_; }

  size_t used() const { return ranges_.used() - wall_; }
  size_t footprint() const { return ranges_.footprint(); }
  bool is_direct() const { return store_.medium().is_direct(); }
  const Store& store() const { return store_; }

  bool refuses_lanes = false;  // for tests: no lane can be made for it

 private:
  void drop(Extent extent);
  void check_own() const;

  const pid_t maker_;
  Store store_;
  Ranges ranges_;
  size_t wall_;
  bool frozen_ = false;
  uint64_t releases_ = 0;
  std::vector<Extent> released_while_frozen_;
};

// The tier for swapped-out bytes of `device`. Raises TierFailure.
std::shared_ptr<Tier> make_tier(Device& device, const TierRecipe& recipe);

}  // namespace memfit
