// Checksums: bytes on the GPU are compared and summed up where they lie, by torch's own kernels.
//
// It is asked while the engine's mutex is held, when nothing can be had from the arena. So it has scratch there as long as it
// lives, as a library has its workspace, and needs no memory beside that. Of what it finds 8 bytes go to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace memfit::cuda {

class Checksums {
 public:
  // In the order of `stream`, which is the current one.
  Checksums(c10::Device device, cudaStream_t stream);
  Checksums(const Checksums&) = delete;
  Checksums& operator=(const Checksums&) = delete;
  ~Checksums();

  // What differs is left in the first of the two, and joined there: it takes a kernel, and one for each doubling of the bytes.
  bool are_same(void* spent, const void* other, size_t bytes);
  // Each lane is a polynomial of its words; the hashes of all lanes, with their places, are summed up.
  uint64_t of(const void* address, size_t bytes);

 private:
  struct ByTorch;
  using Join = void (*)(at::Tensor lanes, const at::Tensor& others);
  size_t absorb(const void* address, size_t bytes);
  void join(char* lanes, size_t count, Join join) const;
  void put_in_lane(char* lane, const void* bytes, size_t count) const;
  uint64_t read(const char* lane) const;
  at::Tensor tensor(const void* address, size_t count, at::ScalarType type) const;
  char* part(size_t number) const { return scratch_ + number * part_bytes_; }

  c10::Device device_;
  cudaStream_t stream_;
  size_t part_bytes_;
  char* scratch_;
};

}  // namespace memfit::cuda
