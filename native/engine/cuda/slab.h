// The host tier of a GPU: page-locked memory that copies reach in the order of a stream, and tiers behind it that need a
// thread to wait.
#pragma once

#include <memory>

#include "../tier.h"

namespace memfit::cuda {

class CudaDevice;

// One slab of at most `capacity` bytes, locked as it is used; ordinary memory, with a warning, where the system refuses
// to lock it. Its pages lie near the GPU, where the system says which those are.
std::unique_ptr<Medium> make_slab(CudaDevice& device, size_t capacity);
// Any other medium, by way of a page-locked buffer each way: a copy returns when it is done.
std::unique_ptr<Medium> through_buffer(CudaDevice& device, std::unique_ptr<Medium> inner);

}  // namespace memfit::cuda
