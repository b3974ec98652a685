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
#include <functional>
#include <vector>

namespace memfit::cuda {

class Checksums {
 public:
  // In the order of `stream`, which is the current one.
  Checksums(c10::Device device, cudaStream_t stream);
  Checksums(const Checksums&) = delete;
  Checksums& operator=(const Checksums&) = delete;
  ~Checksums();

  bool are_same(const void* one, const void* other, size_t bytes);
  // The sum of a hash of each word and its place.
  uint64_t of(const void* address, size_t bytes);

 private:
  // What becomes of a word of each address, of which the first is the word with that number; and of two such results.
  using Mix = std::function<void(const std::vector<at::Tensor>& words, size_t first, const at::Tensor& mixed)>;
  using Join = void (*)(at::Tensor sums, const at::Tensor& others);
  uint64_t reduce(const std::vector<const void*>& addresses, size_t bytes, const Mix& mix, Join join);
  at::Tensor words(const void* address, size_t count) const;
  char* part(size_t number) const { return scratch_ + number * part_bytes_; }

  c10::Device device_;
  cudaStream_t stream_;
  size_t part_bytes_;
  char* scratch_;
};

}  // namespace memfit::cuda
