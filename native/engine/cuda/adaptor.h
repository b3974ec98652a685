// The allocator that stands in for torch's CUDA allocator while a session is active on a GPU.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

namespace memfit::cuda {

class CudaDevice;

// torch's own, whatever is installed.
c10::cuda::CUDACachingAllocator::CUDAAllocator& native_allocator();
c10::cuda::CUDACachingAllocator::CUDAAllocator& adaptor();
// From now on allocations of the device's compute stream go to the engine, and everything else to torch's own.
void install_adaptor(CudaDevice& device);
void remove_adaptor();
// While it exists the calling thread allocates torch's own memory, as if there were no session.
class WithoutSession {
 public:
  WithoutSession();
  WithoutSession(const WithoutSession&) = delete;
  WithoutSession& operator=(const WithoutSession&) = delete;
  ~WithoutSession();

 private:
  const bool before_;
};
// `address` was allocated for a memory pool, before the adaptor was installed or since.
bool in_memory_pool(const void* address);

}  // namespace memfit::cuda
