// Store: a tier's medium, with a count of what goes through it. Of what lies there a part can be written and read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace memfit {

class Compressing;
class Medium;

class Store {
 public:
  // `compressing`: the part of the medium from `boundary` on; nullptr: nothing is compressed.
  Store(std::unique_ptr<Medium> medium, size_t boundary, Compressing* compressing);
  ~Store();

  Medium& medium() const { return *medium_; }

  // These raise TierFailure.
  void write(size_t offset, const void* from, size_t size);
  void read(size_t offset, void* to, size_t size);
  // Of the `stored` bytes at `offset`, those from `at` on.
  void write_part(size_t offset, size_t stored, size_t at, const void* from, size_t size);
  void read_part(size_t offset, size_t stored, size_t at, void* to, size_t size);

  bool compresses() const { return compressing_ != nullptr; }
  // In an iteration ops have waited so long for copies, which have taken so long.
  void iteration_ends(uint64_t waited_ns, uint64_t copied_ns) const;
  // What has been written to the medium and read from it so far, and what `size` bytes take up there.
  uint64_t bytes_stored() const;
  uint64_t bytes_loaded() const;
  size_t stored(size_t offset, size_t size) const;

 private:
  bool is_compressed(size_t offset) const { return compressing_ != nullptr && offset >= boundary_; }

  std::unique_ptr<Medium> medium_;
  size_t boundary_;
  Compressing* compressing_;
  std::atomic<uint64_t> uncompressed_out_{0}, uncompressed_in_{0};
};

}  // namespace memfit
