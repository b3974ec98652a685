// Managed memory (cudaMallocManaged) that stays the host's: the GPU's ops reach it over the link, and its pages come to the GPU
// only where that is asked for.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "../device.h"

namespace memfit::cuda {

class CudaDevice;

// Stretches of it that are used again and again: to make one waits for the GPU.
class ManagedMemory : public std::enable_shared_from_this<ManagedMemory> {
 public:
  explicit ManagedMemory(CudaDevice& device) : device_(device) {}
  ~ManagedMemory();
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;

  // nullptr where the GPU has no such memory, or none whose pages stay where they are told to. Raises TierFailure when the
  // system has no more.
  std::unique_ptr<HostMemory> take(size_t bytes);

 private:
  class Lent;
  struct Stretch {
    char* memory;
    size_t bytes;
  };

  Stretch find(size_t bytes);
  Stretch make(size_t bytes);
  void give_back(Stretch stretch);
  void free_idle();

  CudaDevice& device_;
  std::mutex mutex_;
  std::vector<Stretch> idle_;  // whatever uses one is in the compute stream's order
};

}  // namespace memfit::cuda
